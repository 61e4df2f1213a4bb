"""The Redlock store: a lease is held on a majority of independent Redis nodes.

``store`` says what a majority means, ``node`` has what both drivers share, ``threads`` and ``tasks`` ask the nodes.
There is no push and no queue: waiters poll, and any of them may be next.
"""

"""The stores, one package each (``memory`` is a single file), and what several of them share.

A store and its driver are imported when a URL or a client first needs them, not with ``import leasehold``.
"""

"""The core: written once, for threads and for tasks. It does no I/O.

``protocol`` is the seam to the stores, ``effects`` the one to the shells; ``entry`` has the rules of one name.
``options`` and ``timing`` check what a caller says. ``acquire``, ``release`` and ``keeper`` are the life of a lease,
``registry`` the books that a ``Locks`` keeps of its leases, ``drain`` the end of all.
"""

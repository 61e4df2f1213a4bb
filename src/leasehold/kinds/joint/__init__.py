"""Leases that consist of other leases: ``all_of`` and ``rlock``."""

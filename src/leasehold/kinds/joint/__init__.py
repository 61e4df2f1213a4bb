"""Leases that stand on other leases: ``all_of`` and ``rlock``."""

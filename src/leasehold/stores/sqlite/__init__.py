"""The SQLite store: leases for all processes of one machine, in one file.

``store`` has the tables and the statements, ``threads`` and ``tasks`` the listeners, ``admin`` the doctor's checks.
A release wakes the next waiter through a FIFO (:mod:`leasehold.stores.common.fifo`).
"""

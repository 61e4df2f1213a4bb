"""What the locks promise: ``Lock``, ``RLock``, ``AllOf``, ``SkippingLock`` and ``RWLock``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import habits


class LockContract:
    """A name to acquire."""

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name):
            habits.missing(self, name, habits.LOCK)

    @property
    def name(self) -> str:
        """The name; of several names, all of them."""
        raise NotImplementedError

    def acquire(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for the lease and return it. In asyncio awaited, or used as ``async with lock.acquire(...)``.

        Args:
            timeout: how long to wait: seconds, a ``timedelta`` or text such as "5s"; 0 does not wait. Default: None,
                the lock's own timeout.
            cancel: threads only: a ``threading.Event`` that ends the wait when it is set. Default: None. (A task is
                cancelled instead.)

        Returns:
            The :class:`Lease`: a context manager, which releases it. A lease that is garbage-collected is released.

        Raises:
            AcquireTimeout: another holder had the name for the whole timeout.
            AcquireCancelled: ``cancel`` was set.
            StoreUnavailable: the store did not answer for the whole timeout; without a timeout, for 30 seconds.
            StoreNotReady: the store cannot serve leases.
            ShuttingDown: this ``Locks`` was drained or closed.

        Example::

            with locks.lock("invoice:42").acquire(timeout=5) as lease:
                lease.check()
        """
        raise NotImplementedError

    def try_acquire(self, *args: Any, **kwargs: Any) -> Any:
        """Return the lease, or None where :meth:`acquire` would raise AcquireTimeout. In asyncio awaited.

        Args:
            timeout: how long to wait, as a duration. Default: 0.
            cancel: threads only: as for :meth:`acquire`. Default: None.

        Raises:
            AcquireCancelled: ``cancel`` was set.
            StoreUnavailable: the store did not answer. With on_unavailable="skip" None is returned instead.
            StoreNotReady: the store cannot serve leases.
            ShuttingDown: this ``Locks`` was drained or closed.

        Example::

            lease = locks.lock("nightly").try_acquire()
            if lease is not None:
                lease.release()
        """
        raise NotImplementedError

    def locked(self) -> Any:
        """Whether anybody holds the name now. In asyncio awaited.

        Of a semaphore: whether no permit is free. Of either side of a read/write lock: whether it has any reader or
        writer. Of several names: whether any is held.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def in_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Acquire the name inside the caller's own SQL transaction. The end of the transaction releases it.

        SQL stores only. Never waits. Another transaction or acquire waits until this transaction ends.

        Args:
            connection: the caller's connection to the store's database, in a transaction.

        Returns:
            The fencing token.

        Raises:
            AcquireTimeout: another holder has the name.
            ValueError: the store is not a SQL store, or the connection cannot be used.
        """
        raise NotImplementedError


class RLockContract:
    """A lock that its holder can enter again."""

    @property
    def hold_count(self) -> int:
        """How many entries the calling thread or task has not released yet; 0 if it does not hold the lock. No I/O.

        A lost lease counts until its entries are released. Hazelcast's ``getLockCount``, Redisson's ``getHoldCount``.

        Example::

            lock = locks.rlock("tree")
            with lock, lock:
                assert lock.hold_count == 2
        """
        raise NotImplementedError


class SkippingLockContract:
    """A name to acquire, or to leave alone while another holder has it."""

    @property
    def name(self) -> str:
        """The name; of several names, all of them."""
        raise NotImplementedError

    def try_acquire(self, *args: Any, **kwargs: Any) -> Any:
        """Return the lease, or None while another holder has the name: as :meth:`Lock.try_acquire`.

        Args:
            timeout: how long to wait, as a duration. Default: 0.
            cancel: threads only: as for :meth:`Lock.acquire`. Default: None.
        """
        raise NotImplementedError

    def locked(self) -> Any:
        """Whether anybody holds the name now: as :meth:`Lock.locked`. In asyncio awaited.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError


class RWLockContract:
    """Many readers or one writer."""

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name):
            habits.missing(self, name, habits.RWLOCK)

    def read(self, *args: Any, **kwargs: Any) -> Any:
        """The lock of a reader. Does no I/O.

        Args:
            if_busy: as of :meth:`Locks.lock`. Default: "wait".
            options: the options of :meth:`Locks.lock`; they override those given to ``rwlock``.
        """
        raise NotImplementedError

    def write(self, *args: Any, **kwargs: Any) -> Any:
        """The lock of a writer. ``lease.downgrade()`` turns its lease into a reader's. Does no I/O.

        Args:
            if_busy: as of :meth:`Locks.lock`. Default: "wait".
            options: the options of :meth:`Locks.lock`; they override those given to ``rwlock``.
        """
        raise NotImplementedError

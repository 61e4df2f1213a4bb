"""What a ``Lease`` promises. Whether it can be trusted is computed from the clock at the moment of the question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import habits


class LeaseContract:
    """One holding of a name."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name):
            habits.missing(self, name, habits.LEASE)

    @property
    def name(self) -> str:
        """The name of the lock; of several names, all of them."""
        raise NotImplementedError

    @property
    def token(self) -> int:
        """The fencing token: greater than the token of every earlier lease of this name."""
        raise NotImplementedError

    @property
    def owner(self) -> str:
        """The owner of the ``Locks`` that acquired the lease."""
        raise NotImplementedError

    @property
    def kind(self) -> str:
        """The label given to ``lock``."""
        raise NotImplementedError

    @property
    def data(self) -> Any:
        """What was given to ``lock`` as ``data``."""
        raise NotImplementedError

    @property
    def ttl(self) -> float:
        """How long a term lasts, in seconds."""
        raise NotImplementedError

    @property
    def exclusive(self) -> bool:
        """Whether nobody else can hold the name at the same time: False for a semaphore's permit and for a reader."""
        raise NotImplementedError

    @property
    def remaining(self) -> float:
        """For how many more seconds the lease can be trusted; 0.0 if it cannot. No I/O."""
        raise NotImplementedError

    @property
    def valid(self) -> bool:
        """Whether the lease can be trusted at this moment. No I/O."""
        raise NotImplementedError

    @property
    def lost(self) -> Any:
        """An event that is set when the lease is lost, never after a clean release.

        A ``threading.Event``, in asyncio an ``asyncio.Event``. Waiters wake at most 50 ms after the deadline; in
        asyncio as soon as the loop runs."""
        raise NotImplementedError

    @property
    def lost_reason(self) -> str | None:
        """Why the lease was lost; None while it is held and after a clean release."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise LeaseLost unless the lease can be trusted at this moment. No I/O, and not awaited.

        Call it before each step that the lease protects.

        Raises:
            LeaseLost: the lease was lost or released.
        """
        raise NotImplementedError

    def beat(self) -> None:
        """Report that the body makes progress. Not awaited. With ``beat_every``, renewal stops without it::

        with locks.lock("import", beat_every=60) as lease:
            for batch in range(3):
                lease.beat()
        """
        raise NotImplementedError

    def on_lost(self, *args: Any, **kwargs: Any) -> None:
        """Call ``callback(lease)`` when the lease is lost; at once if it is lost already. Not awaited.

        Args:
            callback: called in a thread of its own; in asyncio in the loop, where it may be async.

        Raises:
            TypeError: the callback cannot be called.

        Example::

            with locks.lock("report") as lease:
                lease.on_lost(lambda lease: print(lease.lost_reason))
        """
        raise NotImplementedError

    def renew(self, *args: Any, **kwargs: Any) -> Any:
        """Renew the lease now. In asyncio awaited. Renewal in the background continues.

        A shorter ttl never shortens a term that the store has granted: if this process dies, the name is free when
        that term expires. On etcd that is so for later terms too: they last as long as the longer one for others.

        Args:
            ttl: how long a term lasts from now on, as a duration. Default: None, as before.

        Raises:
            LeaseLost: the lease was lost, or the store refused the renewal.
            ValueError: the ttl is too short or too long.
            StoreUnavailable: the store did not answer. The lease is held until its deadline.

        Example::

            with locks.lock("report") as lease:
                lease.renew(ttl=60)
        """
        raise NotImplementedError

    def release(self) -> Any:
        """Release the lease: the next waiter gets the name. Idempotent. In asyncio awaited.

        Returns:
            True if this call released it; False if the lease was lost or released before.

        Raises:
            StoreUnavailable: the store did not answer. The release is retried in the background.

        Example::

            lease = locks.lock("report").acquire()
            assert lease.release()
        """
        raise NotImplementedError

    def transfer(self) -> Any:
        """Offer the lease to another process: returns a text for :meth:`Locks.accept`. In asyncio awaited.

        Renews the lease first, so that a whole ttl is left, and renews it until the end of its block. From now on this
        lease is not ``valid``. ``on_lost`` is called when another process has taken it over. The end of the block does
        not release the lease; :meth:`release` does, and withdraws the offer.

        Raises:
            LeaseLost: the lease can no longer be trusted.
            ValueError: the store cannot hand over leases, or the lease is one of ``all_of`` or ``rlock``.

        Example::

            with locks.lock("upload") as lease:
                text = lease.transfer()
        """
        raise NotImplementedError

    def downgrade(self) -> Any:
        """Turn a writer's lease into a reader's, in one step, and end this lease. In asyncio awaited.

        Returns:
            The reader's lease, with a token of its own.

        Raises:
            LeaseLost: the lease can no longer be trusted.
            ValueError: the lease is not one of ``rwlock(name).write()``.

        Example::

            writer = locks.rwlock("catalogue").write().acquire()
            with writer.downgrade() as reader:
                reader.check()
        """
        raise NotImplementedError

    def in_transaction(self, *args: Any, **kwargs: Any) -> Any:
        """Check the lease inside the caller's own SQL transaction. SQL stores only. In asyncio awaited.

        Until the transaction ends nobody else is granted the name, so that its writes are made under this lease.

        Args:
            connection: the caller's connection to the store's database, in a transaction.

        Returns:
            The fencing token.

        Raises:
            LeaseLost: the lease was lost.
            ValueError: the store is not a SQL store, or the connection cannot be used.
        """
        raise NotImplementedError

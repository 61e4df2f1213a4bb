"""What ``Once``, ``Election`` and ``Group`` promise. Operations that ask the store are awaited in ``leasehold.aio``."""

from __future__ import annotations

from typing import Any


class OnceContract:
    """Work of one name and version that is done once."""

    @property
    def name(self) -> str:
        """The name of the work."""
        raise NotImplementedError

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call ``function()``, unless this version has a final outcome already. Return the outcome.

        Inside the function ``leasehold.current()`` is the lease; its token can fence writes. If the lease is lost, the
        next caller does the work. In asyncio awaited: the function may be async, and is cancelled when its lease is
        lost.

        Args:
            function: the work, called without arguments. Its exception is recorded.
            timeout: how long to wait while another process runs the work, as a duration. Default: None, no limit.
            check: whether to raise if the work failed and no retries are left. False: return the outcome. Default:
                None, as for :meth:`Locks.once`.

        Returns:
            The :class:`leasehold.Outcome`.

        Raises:
            Exception: the function's own, if the work failed in this call.
            OnceFailed: the work failed elsewhere, now or earlier.
            LeaseLost: the lease was lost while the function ran, and nobody else completes the work.
            AcquireTimeout: another process runs the work for longer than ``timeout``.
            TooManyOutcomes: there is no room to record another version.
            StoreError: the store did not answer.
            ShuttingDown: this ``Locks`` was drained or closed.

        Example::

            locks.once("index", version="v1").run(lambda: 3, timeout=60).result
        """
        raise NotImplementedError

    def outcome(self) -> Any:
        """The recorded outcome of this version (with ``per``, of the present slot); None if there is none.

        In asyncio awaited.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def history(self) -> Any:
        """The recorded outcomes of all versions that have details, as a list; the one recorded last is at the end.

        In asyncio awaited.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def forget(self, *args: Any, **kwargs: Any) -> Any:
        """Forget the outcome of a version, so that the work runs again. Returns False if there was none.

        In asyncio awaited. Waits while another process runs the work.

        Args:
            version: the version, or the name of the slot. Default: None, this version; with ``per``, the present slot.
            every_version: True: forget the outcomes of all versions. Default: False.

        Raises:
            StoreError: the store did not confirm it.
        """
        raise NotImplementedError


class ElectionContract:
    """One leader among candidates."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Be a candidate: wait until elected, then call ``callback(term)``; if the term is lost, repeat.

        In threads the callback runs in the calling thread, and has to check ``term.stopping`` or ``term.valid``. In
        asyncio this is awaited; the callback is a task, and is cancelled when it has to stop.

        An error of the callback is logged and ends its term. This candidate then campaigns again: after 1 s, and after
        further errors after up to 30 s. With ``on_error="raise"`` the error ends the candidacy.

        Args:
            callback: called with the :class:`Term`; in asyncio an async function.

        Returns:
            The callback's result, when it returns within its term. None after :meth:`stop`, and when the ``Locks`` was
            drained or closed.

        Raises:
            RuntimeError: this candidate is running already.
            StoreNotReady: the store cannot serve leases. (A store that does not answer is retried.)
            Exception: with ``on_error="raise"``, what the callback has raised, except LeaseLost after the term was
                over. KeyboardInterrupt, SystemExit and a cancellation of ``run`` always end the candidacy.
        """
        raise NotImplementedError

    def stop(self) -> None:
        """End the candidacy, and the term if this candidate leads: ``run`` returns. Not awaited.

        If ``run`` has not begun, it returns when it is called."""
        raise NotImplementedError

    def leader(self) -> Any:
        """The leader's lease as a :class:`leasehold.LeaseInfo`; None if nobody leads. In asyncio awaited.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def observe(self, *args: Any, **kwargs: Any) -> Any:
        """Iterate over the leaders: the current one, then each new one; None while nobody leads.

        In asyncio an async iterator. Reads the store once a second. Ends when the ``Locks`` is closed.

        Args:
            cancel: threads only: a ``threading.Event`` that ends the iteration when it is set. Default: None.
        """
        raise NotImplementedError


class GroupContract:
    """Members with heartbeats."""

    def join(self, *args: Any, **kwargs: Any) -> Any:
        """Become a member. In asyncio awaited.

        The membership is a lease: it is lost when its heartbeats fail. Its ``release()``, the end of its block,
        :meth:`leave` and ``drain`` end it.

        Args:
            data: JSON of at most 4 KiB that the other members see. Default: None.
            unique: True: refuse to join while there is a member with the same owner. Default: False.

        Returns:
            The membership: a :class:`Lease`.

        Raises:
            AcquireTimeout: ``unique``, and there is such a member; ``holder`` is its lease.
            ValueError: the data is not JSON, or too long.
            ShuttingDown: the ``Locks`` was drained or closed.
            StoreError: the store did not answer.
        """
        raise NotImplementedError

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Change the data of every membership that was acquired through this object. In asyncio awaited.

        The members that watch get it as an update, not as one that has left and one that has joined. The membership
        gets a new token, and its member a new ``id`` and ``joined``.

        Args:
            data: as for :meth:`join`.

        Raises:
            LookupError: there is no membership to update.
            LeaseLost: the membership is lost.
            ValueError: the data is not JSON, or too long.
            StoreError: the store did not answer as long as the membership lasted, or refused: the membership is over.
        """
        raise NotImplementedError

    def leave(self) -> Any:
        """End every membership that was acquired through this object. Idempotent. In asyncio awaited.

        Raises:
            StoreError: the store did not confirm it. The release is retried in the background.
        """
        raise NotImplementedError

    def members(self) -> Any:
        """The members now, in the order of joining: a sequence of :class:`leasehold.Member`. In asyncio awaited.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def owner_of(self, *args: Any, **kwargs: Any) -> Any:
        """The member that owns ``key``, by consistent hashing; None if there are no members. In asyncio awaited.

        If the group has callbacks, the members that they saw last decide, unless these were read too long ago;
        otherwise the store is read.

        Args:
            key: text or bytes.

        Raises:
            TypeError: the key is neither text nor bytes.
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def leases_of(self, *args: Any, **kwargs: Any) -> Any:
        """The leases of a member's owner, without its memberships of this group: what a failed member left behind.

        Includes expired leases that nobody has acquired since, where the store still lists them. In asyncio awaited.

        Args:
            member: the member, as :meth:`members` or a callback gave it.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

"""What ``Locks`` promises. An operation that asks the store is awaited in ``leasehold.aio``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import habits


class LocksContract:
    """The leases of one namespace of one store."""

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name):
            habits.missing(self, name, habits.LOCKS)

    @property
    def owner(self) -> str:
        """The name of this instance in listings, logs and metrics."""
        raise NotImplementedError

    @property
    def namespace(self) -> str:
        """The namespace: this ``Locks`` sees only names in it."""
        raise NotImplementedError

    def lock(self, *args: Any, **kwargs: Any) -> Any:
        """A lock: a name that one holder at a time can acquire. Does no I/O.

        An option that is None takes its value from the preset of its kind, else from ``connect``, else the default
        below. A duration is a number of seconds, a ``timedelta``, or text such as "250ms", "30s", "5m", "1h" or "2d".

        Args:
            name: 1 to 512 characters, without control characters. In a decorator ``{field}`` is an argument of the
                call. A callable makes the name from the arguments; such a lock can only decorate.
            ttl: how long a term lasts unless it is renewed. Default: 30.
            timeout: how long ``acquire`` and ``with`` wait. Default: None, no limit. ``float("inf")`` overrides a
                timeout given to ``connect``.
            kind: a label for listings, at most 64 characters; a kind with a preset sets the timing. Default: "lock".
            data: JSON of at most 4 KiB, shown in listings. Default: None.
            renew: whether the lease is renewed in the background. Default: True.
            renew_every: how often it is renewed. Default: ttl / 3.
            max_hold: renewal stops this long after the grant; the lease is then lost within ttl. Default: no limit.
            min_hold: the name stays taken for at least this long after the grant. Default: 0.
            beat_every: renewal stops unless the body calls ``lease.beat()`` at least this often. Default: not needed.
            on_lost: what a loss does to the block. "raise": LeaseLost at its end. "cancel" (asyncio only): the task
                that entered it is cancelled, and LeaseLost comes out. "log": only logged. A callable is called with the
                lost lease, besides the default. Default: None, in threads "raise", in asyncio "cancel".
            if_busy: what a decorated call does while another holder has the name. "skip": return None and log who has
                it; "raise": raise AcquireTimeout. With either, timeout is 0 by default. Default: "wait".
            on_unavailable: "skip": ``try_acquire`` returns None when the store is unavailable. Default: "raise".
            fair: None: first come, first served where the store supports it. True: refuse other stores. False: may
                overtake waiters. Default: None.
            poll: shortest and longest pause between polls, on stores without push. Default: (0.01, 0.8).
            backoff: "adaptive": pauses grow by half, ± 20 %; "random": pauses are uniform within ``poll``. Default:
                "adaptive".
            drift: makes the safety margin 2 · drift. Default: a margin of 1 % of ttl + 0.05.
            max_renew_failures: how many failed renewal cycles in a row end the lease before its deadline. Default: 3.

        Raises:
            ValueError: an option is wrong, options contradict each other, or the store does not support one.
            TypeError: an option has the wrong type.

        Example::

            with locks.lock("invoice:42", ttl=10, timeout=5) as lease:
                lease.check()

            @locks.lock("customer:{customer}", if_busy="skip")
            def sync(customer):
                leasehold.current().check()
        """
        raise NotImplementedError

    def semaphore(self, *args: Any, **kwargs: Any) -> Any:
        """A lock that at most ``limit`` holders can hold at once, each with a lease of its own. Does no I/O.

        Args:
            name: the name of the semaphore.
            limit: how many can hold it, 1 to 1,000,000.
            if_busy: as of :meth:`lock`. Default: "wait".
            options: the options of :meth:`lock`, with the same defaults; kind is "semaphore" by default.

        Raises:
            ValueError: an option is wrong, or the store does not support semaphores.
            TypeError: an option is unknown or has the wrong type.

        Example::

            with locks.semaphore("reports", limit=3) as lease:
                lease.check()
        """
        raise NotImplementedError

    def rwlock(self, *args: Any, **kwargs: Any) -> Any:
        """A read/write lock: many readers or one writer. ``.read()`` and ``.write()`` are its locks. Does no I/O.

        Args:
            name: the name of the lock.
            options: the options of :meth:`lock`, with the same defaults, except fair=False; kind is "read" or "write"
                by default.

        Raises:
            ValueError: an option is wrong, or the store does not support read/write locks.
            TypeError: an option is unknown or has the wrong type.

        Example::

            with locks.rwlock("catalogue").read() as lease:
                lease.check()
        """
        raise NotImplementedError

    def rlock(self, *args: Any, **kwargs: Any) -> Any:
        """A re-entrant lock: its holder (the same thread or task, through this ``Locks``) can acquire it again.

        All entries share one token. The last release frees the name. Does no I/O.

        Args:
            name: the name of the lock.
            if_busy: as of :meth:`lock`. Default: "wait".
            options: the options of :meth:`lock`, with the same defaults.

        Raises:
            ValueError: an option is wrong.
            TypeError: an option is unknown or has the wrong type.

        Example::

            lock = locks.rlock("tree")
            with lock, lock as lease:
                lease.check()
        """
        raise NotImplementedError

    def all_of(self, *args: Any, **kwargs: Any) -> Any:
        """A lock of several names, acquired all or none. ``lease.tokens`` has the token of each. Does no I/O.

        All callers acquire names in the same order, so that they cannot deadlock.

        Args:
            names: one or more names, each once.
            if_busy: as of :meth:`lock`. Default: "wait".
            options: the options of :meth:`lock`, with the same defaults, for every name.

        Raises:
            ValueError: there is no name, a name is given twice, or an option is wrong.
            TypeError: an option is unknown or has the wrong type.

        Example::

            with locks.all_of("account:1", "account:2") as lease:
                lease.tokens["account:1"]
        """
        raise NotImplementedError

    def once(self, *args: Any, **kwargs: Any) -> Any:
        """Work that is done once per version, by one process. Other processes wait for its outcome. Does no I/O.

        Args:
            name: the name of the work.
            version: an int, or text of at most 64 characters; each version is done once. Default: 1.
            per: instead of a version: "minute", "hour", "day", or a whole number of seconds (also a timedelta). The
                version is then the slot of time, which begins at a multiple of that in UTC. Default: None.
            wait: False: do not wait while another process runs the work. Default: True.
            retries: how often failed work is tried again. Default: 0.
            retry_by: who tries again: "any", the next caller; "same", the caller that failed. Default: "any".
            keep: of how many versions (1 to 1000) to keep the details. Older ones stay known as done or failed.
                Default: 100.
            check: whether ``run`` raises if the work failed. False: it returns the outcome. Default: True.
            options: of the options of :meth:`lock`: ttl, renew_every, drift, max_renew_failures, data, kind.

        Raises:
            ValueError: an option is wrong, or the store cannot record outcomes.
            TypeError: an option is unknown or has the wrong type.

        Example::

            assert locks.once("migrate", version=42).run(lambda: "migrated").ok
            assert locks.once("report", per="hour").run(lambda: "sent").result == "sent"
        """
        raise NotImplementedError

    def election(self, *args: Any, **kwargs: Any) -> Any:
        """One leader among the candidates that call ``run``. Does no I/O.

        Args:
            name: the name of the election.
            stop_before: a leader that cannot renew its term is notified to stop this long before the term ends.
                Default: ttl / 6, at most 5 s.
            on_error: what an error of the callback ends: "log", its term alone: the error is logged, and the candidate
                campaigns again after a pause; "raise", the candidacy: ``run`` raises the error. Default: "log".
            options: of the options of :meth:`lock`: ttl, renew_every, drift, max_renew_failures, kind, and data, which
                others see as the leader's.

        Raises:
            ValueError: an option is wrong, or ``stop_before`` leaves no time to renew.
            TypeError: an option is unknown or has the wrong type.

        Example::

            locks.election("scheduler").run(lambda term: term.check())
        """
        raise NotImplementedError

    def group(self, *args: Any, **kwargs: Any) -> Any:
        """Members with heartbeats: who is there, who has left, who has failed. Does no I/O.

        Args:
            name: the name of the group.
            heartbeat: the time between two heartbeats of a member. Default: that of the kind's preset, else 30 s.
            misses: how many missed heartbeats make a member fail, 2 or more. Default: 3.
            kind: a label for listings. Default: "member".
            look: how often the members are read for the callbacks. Default: heartbeat / 3, at most 1 s.

        Raises:
            ValueError: an option is wrong, or the store cannot count members.
            TypeError: an option has the wrong type.

        Example::

            with locks.group("workers", heartbeat=5).join(data={"port": 80}) as membership:
                membership.check()
        """
        raise NotImplementedError

    def accept(self, *args: Any, **kwargs: Any) -> Any:
        """Take over a lease with the text that its holder's ``transfer()`` returned: at once, with a new token.

        Args:
            text: what ``transfer()`` returned.
            options: the options of :meth:`lock`. ttl, kind and data are the previous holder's unless given.

        Returns:
            The new lease: a context manager.

        Raises:
            LeaseLost: the previous lease has ended, or another process took it over.
            ValueError: the text is damaged, or of another namespace; an option is wrong; the store cannot hand over.
            TypeError: an option is unknown or has the wrong type.

        Example::

            with locks.lock("upload") as lease:
                text = lease.transfer()
                with locks.accept(text) as ours:
                    ours.check()
        """
        raise NotImplementedError

    def leases(self, *args: Any, **kwargs: Any) -> Any:
        """Iterate over the leases held in this namespace, by name. In asyncio an async iterator.

        Args:
            prefix: list only names that start with this text. Default: "", all names.

        Returns:
            An iterator of :class:`leasehold.LeaseInfo`. It reads the store page by page.

        Raises:
            StoreError: the store cannot be read.

        Example::

            held = [info.name for info in locks.leases("invoice:")]
        """
        raise NotImplementedError

    def inspect(self, *args: Any, **kwargs: Any) -> Any:
        """The lease that holds ``name``, as a :class:`leasehold.LeaseInfo`; None if nobody holds it.

        Args:
            name: the name of the lock. Of several holders the first is returned.

        Raises:
            StoreError: the store cannot be read.

        Example::

            info = locks.inspect("invoice:42")
        """
        raise NotImplementedError

    def break_lease(self, *args: Any, **kwargs: Any) -> Any:
        """Take a lease from its holder. Returns False if nobody holds the name.

        The holder is notified and can no longer renew. The name is free when the holder's block has ended, or its term
        has expired.

        Args:
            name: the name of the lock.
            force: True: free the name at once. The holder may trust its lease until it is notified. Default: False.

        Raises:
            StoreError: the store did not confirm it.

        Example::

            broken = locks.break_lease("invoice:42")
        """
        raise NotImplementedError

    def counters(self) -> Any:
        """The :class:`leasehold.Counters` of this ``Locks``. No I/O, so they work while the store is down: alert on
        these. Not awaited in asyncio."""
        raise NotImplementedError

    def metrics(self) -> Any:
        """The :class:`leasehold.LockMetrics` of the namespace. Reads every record of the namespace.

        Raises:
            StoreError: the store cannot be read.
        """
        raise NotImplementedError

    def on_event(self, *args: Any, **kwargs: Any) -> None:
        """Call ``callback(event)`` for every :class:`leasehold.Event` of this ``Locks``, one at a time and in order.

        Args:
            callback: called in a thread of its own; in asyncio in the loop, where it may be async.

        Raises:
            TypeError: the callback cannot be called.

        Example::

            locks.on_event(lambda event: print(event.type, event.name))
        """
        raise NotImplementedError

    def drain(self, *args: Any, **kwargs: Any) -> Any:
        """Shut down gracefully: acquire no new leases, wait for held ones, then release the rest and leave the groups.

        New acquires raise ShuttingDown.

        Args:
            grace: how long to wait for held leases, as a duration. Default: 300.

        Returns:
            The names of the leases that were still held after the grace: they were marked as lost and released.

        Example::

            left = locks.drain(grace=30)
        """
        raise NotImplementedError

    def drain_on_signals(self, *args: Any, **kwargs: Any) -> None:
        """Call :meth:`drain` on SIGTERM and SIGINT. Call this in the main thread; in asyncio in its loop. Not awaited.

        A second signal ends the grace. Signal handlers that were installed before are called too. Without one the
        process exits with status 0 after the drain.

        Args:
            grace: how long to wait for held leases, as a duration. Default: 300.

        Raises:
            ValueError: called in another thread.
        """
        raise NotImplementedError

    def close(self) -> Any:
        """Mark held leases as lost, release them, and stop leasehold's threads, tasks and connections. Idempotent.

        Waiting acquires raise ShuttingDown. A drain that a signal began is finished first.
        """
        raise NotImplementedError

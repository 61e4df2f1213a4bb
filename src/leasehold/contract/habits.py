"""Names that people know from other libraries: an error says what to use here.

Type checkers must not accept these names. So they are in tables that ``__getattr__`` and ``explained`` read at run
time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def _table(*rows: tuple[str, str]) -> Mapping[str, str]:
    return {name: advice for names, advice in rows for name in names.split()}


LOCK = _table(
    ("release unlock", "release the lease: `with lock:` does, or lease.release() of `lease = lock.acquire()`"),
    ("extend reacquire refresh renew", "a lease is renewed in the background; to do it now, use lease.renew()"),
    ("owned do_i_own is_held valid check", "ask the lease: lease.valid or lease.check()"),
    ("token ttl remaining lost data", "ask the lease, which acquire() returns and `with lock as lease:` names"),
    ("is_locked is_acquired acquired", "use locked() for anybody's lease, lease.valid for your own"),
    ("reset force_release break_lock", "use locks.break_lease(name)"),
    ("try_lock tryLock", "use try_acquire()"),
)
LEASE = _table(
    ("extend reacquire refresh keep_alive keepalive", "use renew(), or renew(ttl=...)"),
    ("owned do_i_own is_held is_valid held locked", "use valid or check()"),
    ("acquire try_acquire", "a lease is held already; acquire with its lock: locks.lock(name)"),
    ("fencing_token fence", "use token"),
    ("unlock", "use release()"),
    ("expires expires_at expires_in", "use remaining, in seconds"),
)
UNAWAITED = _table(("token valid check release renew lost remaining", "await it first: lease = await lock.acquire()"))
LOCKS = _table(
    ("acquire try_acquire get_lock mutex Lock", "use lock(name), and its acquire() or try_acquire()"),
    ("release unlock", "release the lease that acquire() returned: lease.release()"),
    ("Semaphore BoundedSemaphore", "use semaphore(name, limit=...)"),
    ("RLock", "use rlock(name)"),
    ("force_release force_unlock", "use break_lease(name)"),
)
RWLOCK = _table(
    ("acquire try_acquire locked", "use read() or write(), which are locks"),
    ("reader reader_lock read_lock ReadLock", "use read()"),
    ("writer writer_lock write_lock WriteLock", "use write()"),
)
OPTIONS = _table(
    ("blocking block", "to try without waiting, use try_acquire(), or wait=False of once()"),
    ("blocking_timeout", "use timeout=, how long to wait; redis-py's timeout= is ttl= here"),
    ("wait_time wait_timeout acquire_timeout", "use timeout=, how long to wait"),
    ("expire expires expiry expires_in lease_time lease_timeout lock_timeout auto_release_time", "use ttl="),
    ("lock_at_most_for", "use ttl="),
    ("lock_at_least_for", "use min_hold="),
    ("auto_renewal auto_renew auto_extend", "use renew=, which is True by default"),
    ("sleep poll_interval retry_interval retry_delay", "use poll=(shortest, longest), for stores without push"),
    ("id identifier client_id", "use connect(owner=...)"),
    ("prefix key_prefix", "use connect(namespace=...)"),
    ("max_leases value", "use limit="),
    ("thread_local", "leave it out: a lease belongs to no thread, so pass it on"),
    ("host port db password", "put it into the URL: connect('redis://:password@host:6379/0')"),
)


def missing(owner: object, name: str, habits: Mapping[str, str]) -> NoReturn:
    """For ``__getattr__``: raise the error of a missing attribute, with advice if other libraries have that name."""
    if name not in habits:
        object.__getattribute__(owner, name)  # Python's own error, or the one that a property raised
    raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}: {habits[name]}")


def unknown_option(function: str, option: str, known: Iterable[str], otherwise: str) -> TypeError:
    """The error of an option that ``function`` does not have."""
    advice = OPTIONS.get(option)
    if advice is None:
        from difflib import get_close_matches

        close = get_close_matches(option, known, 1)
        advice = f"did you mean {close[0]}?" if close else otherwise
    return TypeError(f"{function}() has no option {option!r}: {advice}")


def explained(function: F) -> F:
    """Decorate a function whose parameters are its options: the error of an unknown one says what to use."""
    code = function.__code__
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(known)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        if not names.issuperset(options):
            unknown = min(options.keys() - names)
            raise unknown_option(function.__name__, unknown, known, f"it has {', '.join(known)}")
        return function(*args, **options)

    return call  # type: ignore[return-value]


class OfThreads:
    """What threads use with ``with``. ``async with`` raises an error that says so."""

    __slots__ = ()

    if not TYPE_CHECKING:

        async def __aenter__(self):
            raise TypeError(
                f"{type(self).__name__} of leasehold is for threads: use `with`, or leasehold.aio.connect()"
            )

        async def __aexit__(self, *error):
            """Never called."""


class OfTasks:
    """What tasks use with ``async with``. ``with`` raises an error that says so."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"{type(self).__name__} of leasehold.aio is for tasks: use `async with`")

        def __exit__(self, *error):
            """Never called."""

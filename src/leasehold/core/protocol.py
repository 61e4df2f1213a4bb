"""What a store and its drivers are: the seam between the core and the rest.

A **store** is pure. Each operation is a generator (``Steps``) that yields requests which its own drivers understand,
is sent the answers, and returns its result. A **driver** does the I/O: it runs steps, and tells the core when the
store calls an attempt. Stores are written once; drivers come in pairs, one for threads and one for asyncio.

Times in records are integer microseconds of the *store's* clock; durations between layers are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ..errors import StoreError

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]
"""A store operation: yields requests, is sent answers, returns ``T``."""

SECOND = 1_000_000


class Ask(NamedTuple):
    """One attempt to take a lease. Asked again with the same ``attempt`` it finds what it was given before."""

    name: str
    attempt: str
    owner: str
    kind: str
    data: str | None
    ttl: int
    rest: int = 0
    """How long the name stays taken after the grant, whatever happens to the holder (``min_hold``)."""
    shape: str = "lock"
    limit: int = 1
    weight: int = 1
    fair: bool = True
    queue: bool = False
    """Whether to wait in the queue when it cannot be had at once."""
    kept: bool = False
    """Whether it is renewed for as long as it is held: then it may share with others what keeps it alive."""
    heir: tuple[str, int] | None = None
    """Attempt and token of a permit that this attempt takes over, in place of taking one of its own.

    In one atomic step the permit becomes this attempt's, with a new token, a whole new term and this ask's owner, kind,
    data and weight (which may be less than it was, never more); who held it is rung. What is left of its ``min_hold``
    goes on. Never waits: the answer is a Grant, or Missing."""


class Holding(NamedTuple):
    """One holder of a name, as the store tells it. ``age`` and ``expires_in`` are seconds from now."""

    name: str
    attempt: str
    owner: str
    kind: str
    data: str | None
    token: int
    age: float
    expires_in: float
    waiters: int | None = None


class Grant(NamedTuple):
    """The lease was given. ``taken_from`` is who let it expire, when that is known."""

    token: int
    hint: Any = None
    """Anything that the store likes to be told again at release."""
    taken_from: Holding | None = None
    at: int | None = None
    """When it was granted, on the store's clock, where a push brings the grant itself."""
    since: float | None = None
    """The local time that its term counts from, when that is before this call: of the renewal that it shares."""


class Busy(NamedTuple):
    """The lease is another's. ``place`` is one's own in the queue (0 is next), None when not queued."""

    holder: Holding | None
    place: int | None
    expires_in: float | None
    """Seconds until the first holder expires; None where the store cannot tell."""
    watch: Sequence[Any] = ()
    """Addresses of the holders, or whatever else the store's own drivers are to watch."""
    now: int | None = None
    """The store's clock at the answer: what the time of a grant that is pushed later is measured against."""
    look: float | None = None
    """Seconds after which to ask again, whatever is pushed: how the name stands may have changed without a word."""
    token: int | None = None
    """The last that the name had given out at the answer: whoever has a greater one was granted it after that."""


class Mismatch(NamedTuple):
    """The name is in use in another shape."""

    shape: str
    limit: int


class Missing(NamedTuple):
    """The permit that was to be taken over (``heir``) is not there: released, expired, broken, or taken before."""


Reply: TypeAlias = Grant | Busy | Mismatch | Missing


class Refusal(NamedTuple):
    """Of several names asked for in one step none was given. ``place`` is that of an ask that could not be."""

    place: int
    why: Busy | Mismatch


Together: TypeAlias = Sequence[Grant] | Refusal | None
"""A grant for each ask, or none of them; None when the store cannot take these names in one step."""

RENEWED, GONE, BROKEN = "renewed", "gone", "broken"
ALL, HELD = "", "held"
"""Rings that do not say whom they mean: all of this session's, or all that it holds."""


class Renewal(NamedTuple):
    """What a keeper asks for each of its leases."""

    name: str
    attempt: str
    token: int
    ttl: int
    offered: bool = False
    """Whether it was offered to another (``transfer``): it has to be there for that one, until its term is over, also
    when our driver is closed before. A store whose leases live by a connection sees to that here; others need not."""


class Store(Protocol):
    """The logic of one kind of store, without I/O."""

    scheme: str
    fair: bool
    """Whether waiters can be served in order of arrival."""
    lacks: Mapping[str, str]
    """What this store truly cannot do, and why: ``semaphore``, ``rwlock``, ``heir``, ``note``. Empty for most."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        """Take the lease, claim what was granted meanwhile, queue (or keep one's place), or say who has it."""

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        """RENEWED, GONE or BROKEN for each, or why that is not known of this one. Never takes a lease that is gone."""

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        """Give it back and grant it to whoever is next. False when it was no longer this attempt's."""

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        """See to it that the attempt neither holds nor waits. True when it did."""

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        """Refuse further renewal and tell the holder, or (``force``) remove it. False when nobody holds the name."""

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """A page of holdings by name, expired ones too, and where the next page starts (None at the end)."""

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        """All live holdings of one name."""

    def read_note(self, name: str) -> Steps[str | None]:
        """The text that is kept beside the name, or None."""

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        """Keep a text beside the name, or delete it (None), if this attempt still holds the name with this token.

        Whether it does and the writing are one atomic step; False when it does not, or was broken. A note survives
        release, expiry and the purge of the lease's record, and stays until it is deleted. At most 64 KiB."""

    def tidy(self) -> Steps[None]:
        """Remove what has been dead for long. Called now and then by the keeper; never needed for correctness."""


class JointStore(Store, Protocol):
    """A store that can take several names in one step. Others leave this out."""

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        """Take all the names in one atomic step, or none. Nobody queues or is overtaken, and no ask has an heir.

        Each is granted only if ``acquire`` would grant it at once. When not all are, nobody holds or waits for anything
        that did not before."""


class Bell(Protocol):
    """What wakes one waiter. Rings are hints: doubled, late and lost ones must do no harm."""

    news: Grant | Busy | None
    """What the last ring told, if it told anything: the lease itself, or how the name stands now."""

    def ring(self) -> None:
        """From any thread; never blocks."""

    def rang(self) -> bool:
        """Whether it has rung since the last wait; then no longer."""


class Driver(Protocol):
    """What threads and asyncio drivers have in common: nothing here does I/O."""

    on_ring: Callable[..., None]
    """Set by the core: to be called, from any thread, with an attempt that the store calls. Never blocks.

    An empty attempt stands for all that waits and all that is held, when rings may have been missed. Where the push
    says more, a Grant or a Busy follows as the second argument: the waiter then need not ask."""

    def forget(self, attempt: str) -> None:
        """The attempt no longer waits."""

    def after_fork(self) -> None:
        """In the child: forget connections and threads without closing them; make new mutexes."""


class ThreadDriver(Driver, Protocol):
    def run(self, steps: Steps[T], limit: float) -> T:
        """Run the steps within ``limit`` seconds. Raises StoreUnavailable, StoreNotReady."""

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """See that rings arrive; called before each wait, and by the keeper (without ``busy``) for what is held.

        Does not raise: False when push is not to be had, so that the waiter polls instead."""

    def close(self) -> None: ...


class TaskDriver(Driver, Protocol):
    async def run(self, steps: Steps[T], limit: float) -> T:
        """As above. When cancelled, the operation may still happen, but before any later one about the same name.

        Renewals need not wait for it: they change nothing of a lease that has ended."""

    async def listen(self, attempt: str, busy: Busy | None) -> bool: ...

    async def close(self) -> None: ...

    def new_loop(self) -> None:
        """The loop that it was used in is closed: forget what was bound to that."""

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        """Run the steps when there is no event loop any more."""

    def close_at_exit(self) -> None: ...


class Opened(NamedTuple):
    """A store, and what makes its drivers. Nothing has been connected yet."""

    store: Store
    threads: Callable[[], ThreadDriver]
    tasks: Callable[[], TaskDriver]


def refuse_options(url: str) -> str:
    """What follows the scheme of a URL, for stores that take no options."""
    scheme, _, rest = url.partition("://")
    path, question, options = rest.partition("?")
    if question:
        first = options.partition("&")[0].partition("=")[0]
        option = f"unknown option {first!r}" if "@" not in first else "an option"  # (which may be part of a password)
        raise ValueError(f"{scheme}: {option} in the store's URL; it takes none")
    return path


def run_steps(steps: Steps[T], handle: Callable[[Any], Any]) -> T:
    """Run a store operation: answer each request with ``handle``."""
    try:
        request = next(steps)
        while True:
            try:
                answer = handle(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def await_steps(steps: Generator[Any, Any, T], handle: Callable[[Any], Awaitable[Any]]) -> T:
    """The same with what ``handle`` awaits. Cancelled, the steps are closed where they are, though what was asked for
    may still happen."""
    try:
        request = next(steps)
        while True:
            try:
                answer = await handle(request)
            except Exception as error:
                request = steps.throw(error)
            else:
                request = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()

"""The seam between the core and the stores: what a store and its drivers are.

A **store** is pure. Each operation is a generator (``Steps``): it yields requests that its own drivers understand, is
sent their answers, and returns its result. A **driver** does the I/O: it runs steps, and passes the store's wake-ups to
the core. A store is written once. Drivers come in pairs, one for threads and one for asyncio.

Times in records are integer microseconds of the *store's* clock; durations between layers are seconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from ..errors import StoreError
from .claim import Unsettled

if TYPE_CHECKING:
    from .places import Place

T = TypeVar("T")

Steps: TypeAlias = Generator[Any, Any, T]
"""A store operation: yields requests, is sent answers, returns ``T``."""

SECOND = 1_000_000


class Ask(NamedTuple):
    """The request of one acquire. Sent again with the same ``attempt``, it finds what it was granted before."""

    name: str
    attempt: str
    owner: str
    kind: str
    data: str | None
    ttl: int
    rest: int = 0
    """How long the name stays taken after the grant, even if the holder releases it (``min_hold``)."""
    shape: str = "lock"
    limit: int = 1
    weight: int = 1
    fair: bool = True
    queue: bool = False
    """Whether to join the queue when the name is not free."""
    kept: bool = False
    """Whether it is renewed for as long as it is held. Then several such leases may share one renewal."""
    heir: tuple[str, int] | None = None
    """Attempt and token of a permit that this attempt takes over, instead of taking one of its own.

    In one atomic step the permit becomes this attempt's, with a new token, a whole new term and this ask's owner, kind,
    data and weight (at most the permit's). Its former holder gets a wake-up. The rest of its ``min_hold`` stays in
    force. Never waits: the answer is a Grant, or Missing."""


class Holding(NamedTuple):
    """One holder of a name, as the store reports it. ``age`` and ``expires_in`` are seconds from now."""

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
    """The lease was granted. ``taken_from`` is the former holder, if it let the lease expire and the store knows it."""

    token: int
    hint: Any = None
    """Anything that the store wants back at the release."""
    taken_from: Holding | None = None
    at: int | None = None
    """When it was granted, on the store's clock. Set where a wake-up carries the grant."""
    since: float | None = None
    """The local time that the term counts from, if that is before this call: when a renewal that it shares was sent."""


class Busy(NamedTuple):
    """Others hold the name. ``place`` is the attempt's place in the queue (0 is next), None if it does not wait."""

    holder: Holding | None
    place: int | None
    expires_in: float | None
    """Seconds until the first holder expires; None if the store does not know."""
    watch: Sequence[Any] = ()
    """Addresses of the holders, or whatever else the store's own drivers have to watch."""
    now: int | None = None
    """The store's clock at the answer. The time of a grant that a later wake-up carries is compared with it."""
    look: float | None = None
    """Seconds after which to call ``acquire`` again: the name may change without a wake-up."""
    token: int | None = None
    """The last token of the name at the answer. A grant with a greater one came after it."""


class Mismatch(NamedTuple):
    """The name is in use in another shape."""

    shape: str
    limit: int


class Missing(NamedTuple):
    """The permit to take over (``heir``) is gone: released, expired, broken, or taken over before."""


Reply: TypeAlias = Grant | Busy | Mismatch | Missing


class Refusal(NamedTuple):
    """Of several names, requested in one step, none was granted. ``place`` is the index of an ask that failed."""

    place: int
    why: Busy | Mismatch


Together: TypeAlias = Sequence[Grant] | Refusal | None
"""A grant for each ask, or a Refusal; None if the store cannot grant these names in one step."""

RENEWED, GONE, BROKEN = "renewed", "gone", "broken"
ALL, HELD = "", "held"
"""Wake-ups that do not name an attempt: for all of this session's attempts, or for all that hold a lease."""


class Renewal(NamedTuple):
    """The renewal of one lease."""

    name: str
    attempt: str
    token: int
    ttl: int
    offered: bool = False
    """Whether ``transfer`` has offered the lease to another process. It then has to outlive our driver, until its term
    ends. Matters only to a store whose leases end with a connection."""


class Store(Protocol):
    """The logic of one kind of store, without I/O. A store derives from this class.

    It may leave out the operations that have a default here."""

    scheme: str
    fair: bool
    """Whether waiters can be served in order of arrival."""
    lacks: Mapping[str, str]
    """What this store cannot do, and why: ``semaphore``, ``rwlock``, ``heir``, ``note``. Empty for most."""
    keeps_places: bool = False
    """Whether the keeper has to call ``keep_waiting`` for this process's waiters.

    Not if places in the queue live by a session, or if a call of each waiter every few seconds is cheap."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        """Take the lease, claim what a release has granted, join the queue or keep one's place, or say who holds it."""

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        """RENEWED, GONE or BROKEN for each, or the error of this one. Never takes a lease that is gone."""

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        """Release the lease and grant the name to the next waiter. False if this attempt no longer held it."""

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        """Make sure that the attempt neither holds nor waits. True if it did."""

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        """Refuse further renewal and wake the holder, or (``force``) remove it. False if nobody holds the name."""

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """A page of holdings by name, expired ones too, and where the next page starts (None at the end)."""

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        """All live holdings of one name."""

    def read_note(self, name: str) -> Steps[str | None]:
        """The text that is kept beside the name, or None."""

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        """Keep a text beside the name, or delete it (None), if this attempt still holds the name with this token.

        The check and the write are one atomic step. False if the attempt does not hold the name, or was broken. A note
        survives release, expiry and the purge of the lease's record, and stays until it is deleted. At most 64 KiB."""

    def read_clock(self, name: str) -> Steps[int | None]:
        """The wall clock of the store that keeps this name, in µs since 1970. Only for slots of time; never for expiry.

        None: the store has no clock that all callers share. Default: None."""
        yield from ()
        return None

    def tidy(self) -> Steps[None]:
        """Remove what has been dead for long. Called now and then by the keeper; never needed for correctness."""

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        """Take all the names in one atomic step, or none. Nobody queues or is overtaken, and no ask has an heir.

        Each is granted only if ``acquire`` would grant it at once. If one is not, nothing has changed.
        Default: not in one step, so the core takes them one after the other."""
        yield from ()
        return None

    def keep_waiting(self, batch: Sequence[Ask]) -> Steps[Sequence[Busy | None]]:
        """Refresh the places of these waiters in their queues, and answer for each as ``acquire`` would.

        None: this waiter has to call ``acquire`` itself, because its place is gone, it may be next, or a holder expired
        ``STAGGER`` ago for each waiter ahead: those ahead may be dead. Grants nothing and wakes nobody. A Busy is an
        answer of this moment: a grant made before it would have been answered with None.
        Called by the keeper if ``keeps_places``, at most once per waiter and check. Default: None for each."""
        yield from ()
        return [None] * len(batch)

    def give_back(self, batch: Sequence[Unsettled]) -> Steps[bool]:
        """Release or abandon many at once, as ``release`` and ``abandon`` would. True if it did.

        Default: False, so the core gives them back one after the other."""
        yield from ()
        return False


class Bell(Protocol):
    """What one waiter sleeps on. A ring (a wake-up) is a hint: a doubled, late or lost one does no harm."""

    news: Grant | Busy | None
    """What the last wake-up carried, if anything: the grant itself, or who holds the name now."""
    place: Place | None
    """While the waiter sleeps: its place, for the keeper."""

    def ring(self) -> None:
        """Wake the waiter. From any thread; never blocks."""

    def rang(self) -> bool:
        """Whether it has rung since the last wait. Resets that."""


class Driver(Protocol):
    """What drivers for threads and asyncio have in common. Nothing here does I/O."""

    on_ring: Callable[..., None]
    """Set by the core. The driver calls it with the attempt of each wake-up, from any thread. Never blocks.

    ``ALL`` is for every waiter and every held lease, when wake-ups may have been missed. If the wake-up carries a Grant
    or a Busy, that is the second argument: the waiter then needs no call."""

    def forget(self, attempt: str) -> None:
        """The attempt no longer waits."""

    def after_fork(self) -> None:
        """In the child: forget connections and threads without closing them; make new mutexes."""


class ThreadDriver(Driver, Protocol):
    def run(self, steps: Steps[T], limit: float) -> T:
        """Run the steps within ``limit`` seconds. Raises StoreUnavailable, StoreNotReady."""

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Make sure that wake-ups arrive. Called before each wait; by the keeper, without ``busy``, for held leases.

        Does not raise: False if the store cannot push now, so that the waiter polls."""

    def close(self) -> None: ...


class TaskDriver(Driver, Protocol):
    async def run(self, steps: Steps[T], limit: float) -> T:
        """As above. A cancelled operation may still happen, but before any later one about the same name.

        Renewals need not wait for it: they do not change a lease that has ended."""

    async def listen(self, attempt: str, busy: Busy | None) -> bool: ...

    async def close(self) -> None: ...

    def new_loop(self) -> None:
        """The event loop was closed: forget what was bound to it."""

    def run_at_exit(self, steps: Steps[T], limit: float) -> T:
        """Run the steps without an event loop, which has ended."""

    def close_at_exit(self) -> None: ...


class Opened(NamedTuple):
    """A store, and what makes its drivers. Nothing is connected yet."""

    store: Store
    threads: Callable[[], ThreadDriver]
    tasks: Callable[[], TaskDriver]


def refuse_options(url: str) -> str:
    """The path of a store's URL. Raises ValueError if the URL has options."""
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
    """The same with an async ``handle``. Cancellation closes the steps where they are; the last request may still be
    carried out."""
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

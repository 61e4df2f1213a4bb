"""What a store and its drivers are: the seam between the engine and the rest.

A **store** is pure. Each operation is a generator (``Steps``) that yields requests which its own drivers understand,
is sent the answers, and returns its result. A **driver** does the I/O: it runs steps, and tells the engine when the
store calls an attempt. Stores are written once; drivers come in pairs, one for threads and one for asyncio.

Times in records are integer microseconds of the *store's* clock; durations between layers are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from .typed import Any, NamedTuple, Protocol, TypeAlias, TypeVar

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


class Busy(NamedTuple):
    """The lease is another's. ``place`` is one's own in the queue (0 is next), None when not queued."""

    holder: Holding | None
    place: int | None
    expires_in: float | None
    """Seconds until the first holder expires; None where the store cannot tell."""
    watch: Sequence[str] = ()
    """Addresses of the holders, for drivers that can watch them."""
    now: int | None = None
    """The store's clock at the answer: what the time of a grant that is pushed later is measured against."""


class Mismatch(NamedTuple):
    """The name is in use in another shape."""

    shape: str
    limit: int


Reply: TypeAlias = Grant | Busy | Mismatch

RENEWED, GONE, BROKEN = "renewed", "gone", "broken"


class Renewal(NamedTuple):
    """What a keeper asks for each of its leases."""

    name: str
    attempt: str
    token: int
    ttl: int


class Store(Protocol):
    """The logic of one kind of store, without I/O."""

    scheme: str
    fair: bool
    """Whether waiters can be served in order of arrival."""

    def acquire(self, ask: Ask) -> Steps[Reply]:
        """Take the lease, claim what was granted meanwhile, queue (or keep one's place), or say who has it."""

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str]]:
        """RENEWED, GONE or BROKEN for each. Never takes a lease that is gone."""

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

    def tidy(self) -> Steps[None]:
        """Remove what has been dead for long. Called now and then by the keeper; never needed for correctness."""


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
    """Set by the engine: to be called, from any thread, with an attempt that the store calls. Never blocks.

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
        """As above. When cancelled, the operation may still happen, but before any later one of this driver."""

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
        raise ValueError(f"{scheme}: unknown option {first!r} in the store's URL; it takes none")
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

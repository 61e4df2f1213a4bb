"""The handle on a lease that a user holds, and the blocks that are open in each thread or task. No I/O, no threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, Self, TypeVar

from ..contract.lease import LeaseContract
from ..errors import LeaseLost
from . import checks, release
from .claim import HANDED_OVER, OFFERED, RELEASED
from .registry import Registry
from .state import DONE, BaseState, Handle, LeaseState

K = TypeVar("K")
L = TypeVar("L", bound="BaseLease")

LONGEST = 100
"""The longest chain of errors to which a loss is added: an error that is raised again and again gathers them."""


class BaseLease(LeaseContract, Handle):
    """A handle on one lease. Everything here is computed from the clock and needs neither I/O nor threads."""

    __slots__ = ("_callbacks", "_core", "_lost", "_state")

    def __init__(self, core: Registry, state: BaseState) -> None:
        on_lost = state.spec.on_lost
        self._core = core
        self._lost: Callable[[], Any] | None = None
        self._callbacks: list[Callable[..., object]] = [] if on_lost is None else [on_lost]
        self._state = state
        state.bind(self)

    @property
    def name(self) -> str:
        return self._state.spec.name

    @property
    def token(self) -> int:
        return self._state.claim.token

    @property
    def owner(self) -> str:
        return self._state.owner

    @property
    def kind(self) -> str:
        return self._state.spec.kind

    @property
    def data(self) -> Any:
        return self._state.spec.data

    @property
    def ttl(self) -> float:
        return self._state.ttl

    @property
    def exclusive(self) -> bool:
        spec = self._state.spec
        return spec.weight == spec.limit

    @property
    def remaining(self) -> float:
        return self._state.remaining(self._core.now())

    @property
    def valid(self) -> bool:
        return self._core.now() < self._state.trusted_until()

    @property
    def lost_reason(self) -> str | None:
        return self._state.lost_reason(self._core.now())

    def check(self) -> None:
        self._state.check(self._core.now())

    def beat(self) -> None:
        self._state.beat(self._core.now())

    def on_lost(self, callback: Callable[[Self], object]) -> None:
        checks.callback(callback, "on_lost", tasks=self._core.cancel_on_loss)
        state = self._state
        with self._core.mutex:
            if state.end is None:
                self._callbacks += [callback]  # no call, in which a signal handler could come and wait
                return
        if state.end != RELEASED:
            self._call([callback])

    def __repr__(self) -> str:
        state = "held" if self.valid else (self.lost_reason or RELEASED)
        return f"<Lease {self.name!r} token={self.token} {state}>"

    def __del__(self) -> None:
        # Nobody can release a handle that was collected.
        state = getattr(self, "_state", None)
        if state is not None and state.released_by is not DONE:
            release.drop_collected(self._core, state)

    def _leave_to_keeper(self) -> None:
        """The block of a lease that was lost ends: the keeper gives the lease back. The store may hang: do not wait."""
        release.leave_lost(self._core, own_state_of(self))

    def _call(self, callbacks: list[Callable[..., object]]) -> None:
        """Call the callbacks with this lease."""
        raise NotImplementedError


# For the rest of the library. Users have no business with these.


def state_of(lease: BaseLease) -> BaseState:
    """The state that the handle stands for."""
    return lease._state


def own_state_of(lease: BaseLease) -> LeaseState:
    """The state of a handle on one lease. Raises ValueError for a lease of ``all_of`` or ``rlock``."""
    state = lease._state
    if not isinstance(state, LeaseState):
        raise ValueError(f"{lease.name!r}: a lease of all_of or rlock does not support this")
    return state


def registry_of(lease: BaseLease) -> Registry:
    """The registry that the lease is kept in."""
    return lease._core


def remove_callback(lease: BaseLease, callback: Callable[..., object]) -> None:
    """Undo ``on_lost``. Called under the registry's mutex."""
    if callback in lease._callbacks:
        lease._callbacks.remove(callback)


def exchange(lease: BaseLease, other: BaseLease) -> None:
    """Let each of two handles stand for the other's lease."""
    lease._state, other._state = other._state, lease._state
    lease._state.bind(lease)
    other._state.bind(other)


# Open blocks.

_open: ContextVar[tuple[tuple[weakref.ref[BaseLease], str, object], ...]] = ContextVar("leasehold_open", default=())
"""The leases of the open blocks, weakly, their names, and who entered them: a task inherits the blocks of the task that
started it. The block alone keeps its lease alive: when an interrupt keeps ``leave`` from being called, the lease is
still collected and released."""


def enter(lease: BaseLease) -> None:
    """Note that the lease's block begins in this thread or task."""
    me = lease._core.me()
    for state in lease._state.parts:
        state.acquirer = me  # another one may have acquired it, and has handed it on
    _open.set((*_open.get(), (weakref.ref(lease), lease.name, me)))


def leave(lease: BaseLease) -> None:
    """Note that the lease's block ends. Removes leases that were collected, too."""
    _open.set(tuple([each for each in _open.get() if each[0]() is not lease and each[0]() is not None]))


def blocks_of(me: object) -> list[tuple[Registry, Sequence[LeaseState]]]:
    """The leases of the blocks that this thread or task has entered, with the registries that they are kept in."""
    blocks = _open.get() if me is not None else ()
    leases = [lease for found, _, whose in blocks if whose == me and (lease := found()) is not None]
    return [(lease._core, lease._state.parts) for lease in leases]


def current() -> BaseLease:
    """The lease of the innermost block that this thread or task is in. No I/O.

    Raises:
        LookupError: no block is open.
        LeaseLost: the block has ended: this task was started in it and has outlived it.

    Example::

        with locks.lock("report"):
            leasehold.current().check()
    """
    stack = _open.get()
    if not stack:
        raise LookupError("no lease is held here: call leasehold.current() inside the block of a lease")
    found, name, _ = stack[-1]
    lease = found()
    if lease is None:  # in a task that was started in the block and outlives it
        raise LeaseLost(name, "its block has ended")
    return lease


def loss_in_block(lease: BaseLease) -> LeaseLost | None:
    """The error with which the lease's block has to end; None if the lease was not lost, or a loss is only logged.

    What its holder gave up with ``release`` or ``transfer`` was not lost."""
    state, reason = state_of(lease), lease.lost_reason
    if reason in (None, OFFERED, HANDED_OVER) or state.offered or state.spec.at_loss == "log":
        return None
    return LeaseLost(lease.name, reason)


def raise_if_lost(lease: BaseLease, error: BaseException | None) -> None:
    """The lease's block has ended, with ``error`` if its body raised one: raise LeaseLost if the lease was lost in it.

    An error of the body's own comes out as it is, with the loss as its context; if a traceback would not show that
    context, with a note, too."""
    lost = loss_in_block(lease)
    if lost is None:
        return
    if error is None or isinstance(error, GeneratorExit):  # a generator that is closed early ends its block normally
        raise lost
    chain = _chain_of(error)
    if len(chain) == LONGEST or any(isinstance(each, LeaseLost) and each.args == lost.args for each in chain):
        return
    chain[-1].__context__ = lost
    if any(each.__suppress_context__ and each.__cause__ is None for each in chain):  # raise … from None
        error.add_note(str(lost))


def _chain_of(error: BaseException) -> list[BaseException]:
    """The error and what it came from, up to LONGEST errors."""
    chain: list[BaseException] = []
    before: BaseException | None = error
    while before is not None and len(chain) < LONGEST and not any(before is each for each in chain):
        chain.append(before)
        before = before.__cause__ or before.__context__
    return chain


def pop_block(blocks: dict[K, list[L]], me: K, name: str) -> L:
    """The lease whose ``with lock:`` block ends here. ``blocks`` has the open ones by thread or task."""
    mine = blocks.get(me)
    if not mine:  # some frameworks enter a block in one thread or task and leave it in another
        others = [(key, stack) for key, stack in list(blocks.items()) if stack]
        if len(others) != 1 or len(others[0][1]) != 1:
            raise RuntimeError(
                f"cannot tell which block of lock {name!r} ends here: it was entered in another thread or task; "
                "use `with lock.acquire() as lease:`"
            )
        me, mine = others[0]
    lease = mine.pop()
    if not mine:
        del blocks[me]
    return lease

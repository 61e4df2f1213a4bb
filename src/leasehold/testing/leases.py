"""What the fixture ``leases`` gives: every ``Locks`` that a test makes meanwhile is in memory, and at its mercy.

Time is the machine's plus what the test has added: waits and timeouts work as ever, and 20 minutes can pass at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core import clock, keeper
from ..core.claim import RELEASED
from ..core.effects import Effects
from ..core.lease import BaseLease, own_state_of, registry_of, state_of
from ..core.protocol import RENEWED, SECOND, Renewal, Steps, Store, run_steps
from ..core.registry import Registry
from ..core.state import BaseState, LeaseState
from ..errors import LeaseLost, StoreError
from ..kinds.joint.joint_lease import parts_of
from ..stores import memory
from .faults import Faults, install_into
from .history import History, Resource, assert_clean

if TYPE_CHECKING:
    import pytest

LOST = "the test says so"
PATIENCE = 30.0
"""How long a keeper has, by the machine's time, to get on with what an advance made due."""


class Clock:
    """Seconds of the machine, and those that were added."""

    def __init__(self) -> None:
        self.added = 0.0

    def now(self) -> float:
        return clock.now() + self.added

    def now_us(self) -> int:
        return clock.now_us() + int(self.added * SECOND)

    def wall_us(self) -> int:
        return clock.wall_us() + int(self.added * SECOND)


class _Noted:
    """A store that tells what was renewed and released in it."""

    def __init__(self, core: Registry, note: Callable[..., None]) -> None:
        self._inner: Store = core.store
        self._core = weakref.proxy(core)
        self._note = note

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def renew(self, batch: Sequence[Renewal]) -> Steps[Sequence[str | StoreError]]:
        invoked = self._core.now()
        outcomes = yield from self._inner.renew(batch)
        for each, outcome in zip(batch, outcomes, strict=True):
            said = "renewed" if outcome == RENEWED else "refused"
            self._note(self._core, "renew", each.name, each.token, invoked, said, later=outcome != RENEWED)
        return outcomes

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        invoked = self._core.now()
        given = yield from self._inner.release(name, attempt, token, hint)
        self._note(self._core, "release", name, token, invoked, "released" if given else "refused")
        return given


def _parts(lease: BaseLease) -> list[LeaseState]:
    """The states of the leases that it stands on; of a plain lease, its own."""
    return [own_state_of(part) for part in parts_of(lease)]


def _who() -> object:
    """The task that runs this, or else the thread."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()


class Leases:
    """The world of one test. ``history`` has every grant, check, renewal, release and loss; add your own writes."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.history = History(now=self.clock.now)
        self._faults: weakref.WeakKeyDictionary[Registry, Faults] = weakref.WeakKeyDictionary()
        self._cuts: list[Sequence[Registry] | None] = []  # one for each partition that lasts; None cuts off everybody
        self._mutex = threading.RLock()
        self._limits: dict[str, int] = {}
        self._places: dict[str, str] = {}
        self._refusals: dict[object, list[dict[str, Any]]] = {}

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """For as long as this lasts, what ``connect`` makes of ``memory://`` (and of no URL) lives here."""
        make, add, end, lose_after_release = Registry.__init__, Registry.add, Registry.end, Registry.lose_after_release
        renew, probe = keeper._renew_batch, keeper._probe
        check, valid = BaseState.check, BaseLease.valid.fget  # type: ignore[attr-defined]
        table = memory.Table

        def make_here(core: Registry, *arguments: Any, **options: Any) -> None:
            make(core, *arguments, **options)
            if core.store.scheme == "memory":
                core.now = self.clock.now
                core.store = _Noted(core, self._note_call)
                with self._mutex:
                    self._faults[core] = install_into(core)
                    self._cut_and_mend()

        def add_here(core: Registry, state: LeaseState) -> None:
            add(core, state)
            if core in self._faults:
                self._note_grant(core, state)

        def end_here(core: Registry, state: LeaseState, reason: str) -> bool:
            at = self.clock.now()  # before anybody can learn of it and act on it
            ended = end(core, state, reason)
            if ended and reason != RELEASED:
                self._note_loss(core, state, at)
            return ended

        def lose_after_release_here(core: Registry, state: LeaseState) -> None:
            at = self.clock.now()
            lose_after_release(core, state)
            self._note_loss(core, state, at)

        def valid_here(lease: BaseLease) -> bool:
            invoked = self.clock.now()
            said = bool(valid(lease))
            self._note_check(lease, invoked, said)
            return said

        def check_here(state: BaseState, now: float) -> None:
            lease, invoked = state.handle, self.clock.now()
            assert isinstance(lease, BaseLease)
            try:
                check(state, now)
            except LeaseLost:
                self._note_check(lease, invoked, False)
                raise
            self._note_check(lease, invoked, True)

        def and_note(effects: Effects[None]) -> Effects[None]:
            """What a renewal came to is noted when it has been acted on, so that what is asked next can be judged."""
            try:
                yield from effects
            finally:
                self._note_refusals()

        monkeypatch.setattr(keeper, "_renew_batch", lambda *args, **options: and_note(renew(*args, **options)))
        monkeypatch.setattr(keeper, "_probe", lambda *args: and_note(probe(*args)))
        monkeypatch.setattr(Registry, "__init__", make_here)
        monkeypatch.setattr(Registry, "add", add_here)
        monkeypatch.setattr(Registry, "end", end_here)
        monkeypatch.setattr(Registry, "lose_after_release", lose_after_release_here)
        monkeypatch.setattr(BaseState, "check", check_here)
        monkeypatch.setattr(BaseLease, "valid", property(valid_here))
        monkeypatch.setattr(memory, "Table", lambda: table(self.clock.now_us, self.clock.wall_us))
        monkeypatch.setattr(memory, "_tables", {})
        monkeypatch.setattr(BaseLease, "lose", lambda lease, reason=LOST: self.lose(lease, reason), raising=False)
        monkeypatch.setenv("LEASEHOLD_URL", "memory://test")
        try:
            yield
        finally:
            with self._mutex:
                self._cuts.clear()
                self._cut_and_mend()

    # What can be done to leases.

    def lose(self, lease: BaseLease, reason: str = LOST) -> None:
        """The lease is lost now, as if the store had said so: there another can have it. Also ``lease.lose()``."""
        core, at = registry_of(lease), self.clock.now()
        if core not in self._faults:
            for part in _parts(lease):
                core.lose(part, reason)
            return
        with core.mutex:
            lost = [part for part in _parts(lease) if part.end is None]
            for part in lost:
                part.end = reason  # it is trusted no longer, so another may have it before anybody is told
        for part in lost:
            core.leases.pop(part.claim.attempt, None)
            run_steps(core.store.abandon(part.name, part.claim.attempt), core.driver.inner._handle)  # type: ignore[attr-defined]
            self._note_loss(core, part, at)
        for part in lost:
            part.announce()
            core.tell("lost", part.name, part.token, reason)

    def advance(self, seconds: float) -> None:
        """Let time pass; what is held is renewed meanwhile, unless the store is cut off. For threads."""
        self._advance(seconds)

    async def aadvance(self, seconds: float) -> None:
        """As :meth:`advance`, for asyncio: awaited in the loop that the leases are in."""
        await self._aadvance(seconds)

    def pause(self, seconds: float, *locks: Any) -> None:
        """The process is stopped for so long: time passes, and nothing of it runs. What ran out is lost afterwards.

        Given some ``Locks``, only those are: they stand for one process of several, and the others go on. For threads.
        """
        if not locks:
            self.clock.added += seconds
            self._after_the_jump(self._here())
            return
        with self._stopped(locks) as stopped:
            self._advance(seconds, stopped)

    async def apause(self, seconds: float, *locks: Any) -> None:
        """As :meth:`pause`, for asyncio: awaited in the loop that the leases are in."""
        if not locks:
            self.pause(seconds)
            return
        with self._stopped(locks) as stopped:
            await self._aadvance(seconds, stopped)

    @contextmanager
    def partition(self, *locks: Any) -> Iterator[None]:
        """Nothing reaches the store, and nothing comes from it: for these ``Locks``, or for all, also those to come."""
        cut = self._cores(locks) if locks else None
        with self._mutex:
            self._cuts.append(cut)
            self._cut_and_mend()
        try:
            yield
        finally:
            with self._mutex:
                self._cuts.remove(cut)
                self._cut_and_mend()

    def check(self, resources: dict[str, Resource] | None = None, **options: Any) -> None:
        """Judge the history; AssertionError says what must not have happened. See leasehold.testing.history.

        ``options`` are those of its ``check``. How many may hold a name is known of what was granted here; ``limit``
        says it of other names.
        """
        limit = options.pop("limit", {})
        if isinstance(limit, Mapping):
            limit = {**self._limits, **limit}
        late = options.pop("late", float("inf"))  # an advance makes losses as late as it likes
        assert_clean(self.history, resources, limit=limit, late=late, **options)

    # What is noted.

    def _name(self, core: Registry, name: str) -> str:
        """The lease's name; where that is another's too (in another namespace or store), one that tells them apart."""
        table = core.driver.inner._table  # type: ignore[attr-defined]
        place = next((f"{url}/{core.namespace}" for url, each in memory._tables.items() if each is table), "")
        return name if self._places.setdefault(name, place) == place else f"{name} in {place}"

    def _holding(self, core: Registry, state: LeaseState) -> dict[str, Any]:
        return {"name": self._name(core, state.name), "owner": state.owner, "token": state.token}

    def _note_grant(self, core: Registry, state: LeaseState) -> None:
        held, spec = self._holding(core, state), state.spec
        self._limits[held["name"]] = max(spec.limit, self._limits.get(held["name"], 1))
        self.history.add("acquire", **held, invoked=state.sent, outcome="granted", weight=spec.weight)

    def _note_loss(self, core: Registry, state: LeaseState, at: float) -> None:
        if core in self._faults:
            due = min(state.deadline, at)
            self.history.add("lost", **self._holding(core, state), invoked=due, returned=at, outcome=state.end or "")

    def _note_check(self, lease: BaseLease, invoked: float, valid: bool) -> None:
        core, parts = registry_of(lease), _parts(lease)
        if core in self._faults and (valid or parts == [state_of(lease)]):  # which of several is lost is not said
            outcome = "valid" if valid else "invalid"
            for part in parts:
                self.history.add("check", **self._holding(core, part), invoked=invoked, outcome=outcome)

    def _note_call(
        self, core: Registry, op: str, name: str, token: int, invoked: float, outcome: str, later: bool = False
    ) -> None:
        held: dict[str, Any] = {"name": self._name(core, name), "owner": core.owner, "token": token}
        noted = {"op": op, **held, "invoked": invoked, "outcome": outcome}
        if later:
            self._refusals.setdefault(_who(), []).append(noted)
        else:
            self.history.add(**noted)

    def _note_refusals(self) -> None:
        for noted in self._refusals.pop(_who(), ()):
            self.history.add(**noted)

    # How.

    def _here(self) -> list[Registry]:
        with self._mutex:
            return list(self._faults)

    def _cores(self, locks: Sequence[Any]) -> list[Registry]:
        cores = [each._core for each in locks]
        if not all(core in self._faults for core in cores):
            raise ValueError("only a Locks that is in memory, made in this test, can be cut off or stopped")
        return cores

    def _cut_and_mend(self) -> None:
        """Cut off whom a partition that lasts cuts off, and nobody else."""
        for core in self._here():
            faults = self._faults[core]
            cut = any(each is None or core in each for each in self._cuts)
            if cut and not faults.deaf:
                faults.deaf = True
                faults.lose_request()
            elif faults.deaf and not cut:
                faults.mend()

    @contextmanager
    def _stopped(self, locks: Sequence[Any]) -> Iterator[list[Registry]]:
        stopped = self._cores(locks)
        with self.partition(*locks):
            yield stopped
        self._after_the_jump(stopped)

    def _advance(self, seconds: float, stopped: Sequence[Registry] = ()) -> None:
        for cores in self._moments(seconds, stopped):
            patient_until = time.monotonic() + PATIENCE
            while self._busy(cores) and time.monotonic() < patient_until:
                time.sleep(0.001)

    async def _aadvance(self, seconds: float, stopped: Sequence[Registry] = ()) -> None:
        for cores in self._moments(seconds, stopped):
            patient_until = time.monotonic() + PATIENCE
            while self._busy(cores) and time.monotonic() < patient_until:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def _moments(self, seconds: float, stopped: Sequence[Registry]) -> Iterator[list[Registry]]:
        """Go to each moment at which a keeper has something to do, and to the end. Yields who has to get on with it."""
        end = self.clock.now() + seconds
        stuck: list[Registry] = []
        while (left := end - self.clock.now()) > 0:
            cores = [core for core in self._here() if core not in stopped and core.closed is None]
            for core in cores:
                core.expire()  # the timer may not have looked yet at what came last
            moments = [min(_due(core), core.next_deadline) for core in cores if core not in stuck]
            due = min(moments, default=end) - self.clock.now()
            self.clock.added += max(0.0, min(left, due + 0.0005))
            self._after_the_jump(cores)
            late = [core for core in cores if _due(core) <= self.clock.now()]
            yield late
            stuck = [core for core in late if _due(core) <= self.clock.now()]  # time goes on without them

    def _after_the_jump(self, cores: list[Registry]) -> None:
        for core in cores:
            if core.next_deadline <= self.clock.now():
                core.expire()
            if _due(core) <= self.clock.now():
                core.wake_keeper()
            for bell in list(core.asking.values()):
                bell.ring()  # waits go by the machine's time: look again

    def _busy(self, cores: list[Registry]) -> bool:
        return any(_due(core) <= self.clock.now() and core.keeping for core in cores)


def _due(core: Registry) -> float:
    """When the keeper has something to do, whether it knows that yet or not."""
    return min([core.next_look, *(state.due for state in core.held())])

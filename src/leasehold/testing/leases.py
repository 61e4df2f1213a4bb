"""The fixture ``leases``: each ``Locks`` of the test is in memory, and the test controls its time and faults.

Time is the machine's plus what the test has added: waits and timeouts work as usual, and 20 minutes can pass at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..core import clock, keeper, timing
from ..core.claim import RELEASED, TAKEN
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
"""How many seconds, of the machine's time, a keeper has for the renewals that an advance made due."""


class Clock:
    """The machine's clock plus the seconds that the test has added."""

    def __init__(self) -> None:
        self.added = 0.0

    def now(self) -> float:
        return clock.now() + self.added

    def now_us(self) -> int:
        return clock.now_us() + int(self.added * SECOND)

    def wall_us(self) -> int:
        return clock.wall_us() + int(self.added * SECOND)


class _Noted:
    """A store that records renewals and releases."""

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
    """The states of the leases that it consists of; of a plain lease, its own."""
    return [own_state_of(part) for part in parts_of(lease)]


def _who() -> object:
    """The current task, or the current thread outside of tasks."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return task or threading.get_ident()


class Leases:
    """What the fixture ``leases`` is: control over all ``Locks`` in memory that this test creates.

    ``history`` has every grant, check, renewal, release and loss; add your own writes to it. ``clock`` is the clock of
    these ``Locks``. ::

        def test_lease_survives_twenty_minutes(leases):
            with leasehold.connect() as locks, locks.lock("report") as lease:
                leases.advance(1200)
                assert lease.valid
            leases.check()
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.history = History(now=self.clock.now)
        self._faults: weakref.WeakKeyDictionary[Registry, Faults] = weakref.WeakKeyDictionary()
        self._cuts: list[Sequence[Registry] | None] = []  # one for each current partition; None cuts off all
        self._mutex = threading.RLock()
        self._limits: dict[str, int] = {}
        self._places: dict[str, str] = {}
        self._refusals: dict[object, list[dict[str, Any]]] = {}

    @contextmanager
    def installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """While this lasts, ``connect`` opens ``memory://`` (and no URL) here. ``monkeypatch`` is pytest's fixture."""
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
            at = self.clock.now()  # before anything can react to it
            ended = end(core, state, reason)
            if ended and reason != RELEASED:
                self._note_loss(core, state, at)
            return ended

        def lose_after_release_here(core: Registry, state: LeaseState, reason: str = TAKEN) -> None:
            at = self.clock.now()
            lose_after_release(core, state, reason)
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
            """Record the outcome of a renewal after it took effect, so that the next check can be judged."""
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

    # What a test can do to leases.

    def lose(self, lease: BaseLease, reason: str = LOST) -> None:
        """Lose ``lease`` now, as if the store had ended it: another holder can acquire the name. Also ``lease.lose()``.

        Args:
            lease: a lease, of threads or asyncio.
            reason: its ``lost_reason``. Default: "the test says so".
        """
        core, at = registry_of(lease), self.clock.now()
        if core not in self._faults:
            for part in _parts(lease):
                core.lose(part, reason)
            return
        with core.mutex:
            lost = [part for part in _parts(lease) if part.end is None]
            for part in lost:
                part.end = reason  # not trusted any more, so the name may be granted before the holder is notified
        for part in lost:
            core.leases.pop(part.claim.attempt, None)
            run_steps(core.store.abandon(part.name, part.claim.attempt), core.driver.inner._handle)  # type: ignore[attr-defined]
            self._note_loss(core, part, at)
        for part in lost:
            part.announce()
            core.tell("lost", part.name, part.token, reason, ended=part)

    def advance(self, seconds: timing.Duration) -> None:
        """Let ``seconds`` pass: a number, a ``timedelta`` or text such as "20m". For threads.

        Held leases are renewed meanwhile, unless their store is cut off.
        """
        self._advance(seconds)

    async def aadvance(self, seconds: timing.Duration) -> None:
        """As :meth:`advance` (``seconds``), for asyncio: awaited in the loop of the leases."""
        await self._aadvance(seconds)

    def pause(self, seconds: timing.Duration, *locks: Any) -> None:
        """Pause the process for ``seconds``: time passes, and nothing runs. Leases that expired are lost afterwards.

        Given ``locks``, only these are paused: they stand for one process of several. For threads.
        """
        if not locks:
            self.clock.added += timing.number(seconds, "seconds")
            self._after_the_jump(self._here())
            return
        with self._stopped(locks) as stopped:
            self._advance(seconds, stopped)

    async def apause(self, seconds: timing.Duration, *locks: Any) -> None:
        """As :meth:`pause` (``seconds``, ``locks``), for asyncio: awaited in the loop of the leases."""
        if not locks:
            self.pause(seconds)
            return
        with self._stopped(locks) as stopped:
            await self._aadvance(seconds, stopped)

    @contextmanager
    def partition(self, *locks: Any) -> Iterator[None]:
        """Cut ``locks`` off from the store for the length of a ``with`` block. Default: all, and later ones."""
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
        """Judge the history: raise AssertionError if a rule was broken. See :mod:`leasehold.testing.history`.

        Args:
            resources: the final state of each fenced resource, by name. Default: none.
            options: the options of :func:`leasehold.testing.history.check`. The ``limit`` of names that were granted
                here is known.
        """
        limit = options.pop("limit", {})
        if isinstance(limit, Mapping):
            limit = {**self._limits, **limit}
        late = options.pop("late", float("inf"))  # an advance delays losses
        assert_clean(self.history, resources, limit=limit, late=late, **options)

    # What is recorded.

    def _name(self, core: Registry, name: str) -> str:
        """The name in the history: the lease's name; with its namespace and store if another one has the same name."""
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
        if core in self._faults and (valid or parts == [state_of(lease)]):  # it is not known which of several is lost
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
        """Cut off exactly the ``Locks`` of the current partitions."""
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

    def _advance(self, seconds: timing.Duration, stopped: Sequence[Registry] = ()) -> None:
        for cores in self._moments(seconds, stopped):
            patient_until = time.monotonic() + PATIENCE
            while self._busy(cores) and time.monotonic() < patient_until:
                time.sleep(0.001)

    async def _aadvance(self, seconds: timing.Duration, stopped: Sequence[Registry] = ()) -> None:
        for cores in self._moments(seconds, stopped):
            patient_until = time.monotonic() + PATIENCE
            while self._busy(cores) and time.monotonic() < patient_until:  # noqa: ASYNC110
                await asyncio.sleep(0.001)

    def _moments(self, seconds: timing.Duration, stopped: Sequence[Registry]) -> Iterator[list[Registry]]:
        """Advance to each time at which a keeper is due, then to the end. Yields the registries with due keepers."""
        end = self.clock.now() + timing.number(seconds, "seconds")
        stuck: list[Registry] = []
        while (left := end - self.clock.now()) > 0:
            cores = [core for core in self._here() if core not in stopped and core.closed is None]
            for core in cores:
                core.expire()  # the timer may not have seen the newest leases yet
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
                bell.ring()  # waits use the machine's time: check again

    def _busy(self, cores: list[Registry]) -> bool:
        return any(_due(core) <= self.clock.now() and core.keeping for core in cores)


def _due(core: Registry) -> float:
    """When the keeper is due, whether it was notified yet or not."""
    return min([core.next_look, *(state.due for state in core.held())])

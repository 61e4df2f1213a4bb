"""Members with heartbeats: the part that groups of threads and of tasks share.

A membership is a lease: one permit of a name with a very high limit. Its renewal is the heartbeat, and its ttl is the
time after which a silent member has failed. So a group works on every store that has semaphores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeAlias, overload

from ...contract.kinds import GroupContract
from ...core import checks, timing
from ...core.claim import NOT_UPDATED
from ...core.effects import Effects, Run, Wait
from ...core.lease import BaseLease, exchange, state_of
from ...core.listing import PAGE, info
from ...core.log import ERROR, INFO, WARNING, log
from ...core.options import MEMBER, Spec, was_updated
from ...core.protocol import Bell, Holding
from ...core.registry import Registry
from ...core.release import after_replacing
from ...core.state import LeaseState
from ...core.timing import Duration
from ...errors import AcquireTimeout, StoreUnavailable
from ...model import LeaseInfo

SHAPE, ROOM = "group", 1_000_000
JOINED, LEFT, FAILED, UPDATED = "joined", "left", "failed", "updated"
HEARTBEAT = 30.0
LONGEST_INTERVAL = 1.0


class Member(NamedTuple):
    """One membership of a group.

    Fields:
        id: the token of the membership: a later member has a greater id.
        owner: the owner of the ``Locks`` that joined.
        data: what the member gave to ``join``.
        joined: when it joined, an aware datetime in UTC.
        expires: when it fails, unless it sends a heartbeat before.
    """

    id: int
    owner: str
    data: Any
    joined: datetime
    expires: datetime


Callback: TypeAlias = Callable[[Member], object]


class Subscription:
    """A callback, until it is unsubscribed."""

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.active = True


Subscriptions: TypeAlias = dict[str, list[Subscription]]


class Roster(Sequence[Member]):
    """The members at one moment, in the order of joining."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = sorted(members)
        self._by_owner: dict[str, list[Member]] = {}
        for member in self._members:  # an owner may have joined more than once
            self._by_owner.setdefault(member.owner, []).append(member)
        self._slots = [
            (f"{owner}#{number}".encode(), owner) for owner, own in self._by_owner.items() for number in range(len(own))
        ]

    def __len__(self) -> int:
        return len(self._members)

    @overload
    def __getitem__(self, place: int) -> Member: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Member]: ...

    def __getitem__(self, place: int | slice) -> Member | Sequence[Member]:
        return self._members[place]

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members)

    def __repr__(self) -> str:
        return f"<Roster {[member.owner for member in self]}>"

    def owner_of(self, key: str | bytes | bytearray | memoryview) -> Member | None:
        """The member that owns ``key``, text or bytes; None if there are no members. Raises TypeError for other keys.

        Rendezvous hashing: each membership hashes the key with its owner's name, and the highest hash wins. Everybody
        who sees the same members gets the same answer, and when a member joins or leaves, only its own keys move. Among
        several memberships of the winning owner a second hash, with their ids, decides."""
        from hashlib import blake2b

        if isinstance(key, str):
            key = key.encode(errors="surrogatepass")
        elif not isinstance(key, (bytes, bytearray, memoryview)):  # bytes(42) would be 42 zeros
            raise TypeError(f"a key must be a str or bytes, not {type(key).__name__}")
        hashed = blake2b(bytes(key), digest_size=16).digest()

        def score(slot: bytes) -> bytes:
            return blake2b(hashed + slot, digest_size=8).digest()

        if not self._slots:
            return None
        own = self._by_owner[max((score(slot), owner) for slot, owner in self._slots)[1]]
        return own[0] if len(own) == 1 else max(own, key=lambda member: score(str(member.id).encode()))


def make_spec(
    core: Registry, name: str, heartbeat: Duration | None, misses: int, kind: str, look: Duration | None
) -> tuple[Spec, float]:
    """The options of a membership's lease, and how often to read the members. Raises ValueError or TypeError."""
    if "semaphore" in core.store.lacks:
        raise ValueError(f"group: {core.store.scheme} cannot count members: {core.store.lacks['semaphore']}")
    if heartbeat is None:
        heartbeat = core.kinds[kind].heartbeat if kind in core.kinds else HEARTBEAT
    beat = timing.seconds(heartbeat, "heartbeat")
    if isinstance(misses, bool) or not isinstance(misses, int):
        raise TypeError("misses must be an int")
    if misses < 2:
        raise ValueError(f"misses must be 2 or more, not {misses}: one late heartbeat is no failure")
    look = min(LONGEST_INTERVAL, beat / 3) if look is None else timing.seconds(look, "look")
    if look > beat:
        raise ValueError(f"look of {look:g} s must not be longer than the heartbeat of {beat:g} s")
    spec = core.lasting_spec(name, ttl=beat * misses, renew_every=beat, max_renew_failures=misses, kind=kind)
    return spec._replace(shape=SHAPE, limit=ROOM), look


def to_member(holding: Holding) -> Member:
    seen = info(holding)
    return Member(seen.token, seen.owner, seen.data, seen.acquired, seen.expires)


def members(core: Registry, name: str) -> Effects[Roster]:
    core.check_open()
    return Roster(to_member(each) for each in (yield Run(core.store.inspect(name), timing.CALL_LIMIT)))


def check_unique(core: Registry, name: str, token: int | None) -> Effects[None]:
    """Raise AcquireTimeout if there is a member with the same owner that joined before the one with this token.

    A member that has been updated has a later token than it joined with. It had joined before: only a member can be."""
    core.check_open()
    for each in (yield Run(core.store.inspect(name), timing.CALL_LIMIT)):
        if each.owner == core.owner and (token is None or each.token < token or was_updated(each.attempt)):
            since = f"for {each.age:.3g} s, expires in {each.expires_in:.3g} s unless it is renewed"
            raise AcquireTimeout(f"group {name!r} has a member {core.owner!r} already, {since}", info(each))


def leases_of(core: Registry, owner: str) -> Effects[list[LeaseInfo]]:
    """The leases of an owner, also expired ones that nobody has taken over, where the store still lists them."""
    core.check_open()
    found: list[LeaseInfo] = []
    after: str | None = ""
    while after is not None:
        page, after = yield Run(core.store.scan("", after, PAGE), timing.CALL_LIMIT)
        found += (info(each) for each in page if each.owner == owner)
    return found


class MemberMonitor:
    """Finds out which members have joined, left and failed, and reports each change once, in order."""

    def __init__(self, core: Registry, name: str, look: float, subscriptions: Subscriptions) -> None:
        self.roster: Roster | None = None
        self.subscriptions = subscriptions
        self._core = core
        self._born = core.generation
        self._name = name
        self._interval = look
        self._known: dict[str, tuple[Member, float, str]] = {}  # by what stays of their attempts when they are updated
        self._introduced: set[Subscription] = set()  # those that have been notified of the members that were there
        self._read_at: float | None = None
        self._key = f"monitor {id(self)}"
        self._bell: Bell | None = None
        self._ended = False
        self._not_ready = False

    def must_stop(self) -> bool:
        """Whether the monitor has to stop. When nobody listens any more it ends: the next callback starts another."""
        core = self._core
        if not any(self.subscriptions.values()):
            with core.mutex:
                self._ended = self._ended or not any(self.subscriptions.values())
        return self._ended or core.closed is not None or core.draining is not None or core.dropped

    def ended(self) -> bool:
        """Whether the monitor no longer runs: it has ended, or belongs to the parent process of this fork."""
        return self._ended or self._born != self._core.generation

    def recent(self, longest: float) -> Roster | None:
        """The members at the last read, if that was less than ``longest`` seconds ago."""
        read_at = self._read_at  # read before the roster, since it is written after the roster
        return self.roster if read_at is not None and self._core.now() < read_at + longest else None

    def changes(self) -> Effects[list[tuple[Subscription, Member]]]:
        """Sleep (not the first time), then read the members once. Returns the callbacks to call, each with its member,
        in order. One that is no longer ``active`` is not to be called."""
        core, first = self._core, self._bell is None
        bell = self._bell = self._bell or core.new_bell()
        # close and drain wake all that is in ``asking``, and wait for their calls. They do not wait for callbacks.
        core.asking[self._key] = bell
        try:
            if not first and not self.must_stop():
                yield Wait(bell, self._interval)
            if self.must_stop():
                return []
            asked = core.now()
            holdings = yield Run(core.store.inspect(self._name), timing.CALL_LIMIT)
            calls = [] if self.must_stop() else self._calls(holdings, asked, core.now())
        except StoreUnavailable:
            return []  # unknown: report no change
        except Exception as error:  # StoreNotReady: logged once and retried, since it can be fixed
            self.roster = None
            if not self._not_ready:
                text = "cannot read group %r; retrying: %s"
                log(ERROR, text, self._name, error, exc=error, event="not_ready", name=self._name)
            self._not_ready = True
            return []
        finally:
            core.asking.pop(self._key, None)
        self._not_ready = False
        return calls

    def end(self) -> None:
        """The monitor runs no longer."""
        self.roster = None
        self._ended = True

    def _calls(self, holdings: Iterable[Holding], asked: float, answered: float) -> list[tuple[Subscription, Member]]:
        """The callbacks to call. First each new on_joined callback with the members that were there already, then all
        callbacks with the changes."""
        listening = {happened: list(subscribed) for happened, subscribed in self.subscriptions.items()}
        there = sorted(member for member, _, _ in self._known.values())
        new = [each for each in listening[JOINED] if each not in self._introduced]
        calls = [(each, member) for each in new for member in there]
        self._introduced = set(listening[JOINED])
        for happened, member in self._compare(holdings, asked, answered):
            calls += [(each, member) for each in listening[happened]]
        return calls

    def _compare(self, holdings: Iterable[Holding], asked: float, answered: float) -> Iterator[tuple[str, Member]]:
        now = {each.attempt[:MEMBER]: (to_member(each), asked + each.expires_in, each.attempt) for each in holdings}
        before, self._known = self._known, now
        unseen = 0.0 if self._read_at is None else answered - self._read_at
        self.roster = Roster(member for member, _, _ in now.values())
        self._read_at = asked
        changed = {key for key in now.keys() & before.keys() if now[key][0].id != before[key][0].id}
        # The same attempt with another id: its first grant was lost before it got the answer, and it was granted again.
        again = {key for key in changed if now[key][2] == before[key][2]}
        for member, until, _ in sorted(before[key] for key in (before.keys() - now.keys()) | again):
            # A member that is gone before it would have expired has left; one that is gone after that has failed. It
            # may also have left after the last read. Then "failed" is the safe answer: its work gets checked.
            yield self._report(FAILED if answered >= until else LEFT, member, unseen)
        for member, _, _ in sorted(now[key] for key in (now.keys() - before.keys()) | again):
            yield self._report(JOINED, member, unseen)
        for member, _, _ in sorted(now[key] for key in changed - again):
            yield self._report(UPDATED, member, unseen)

    def _report(self, happened: str, member: Member, unseen: float) -> tuple[str, Member]:
        doubt = happened == FAILED and unseen > 2 * self._interval
        text = "group %r: %s has %s" + (f" (or left: the last read was {unseen:.3g} s ago)" if doubt else "")
        level = WARNING if happened == FAILED else INFO
        log(level, text, self._name, member.owner, happened, event=happened, name=self._name)
        return happened, member


class BaseGroup(GroupContract):
    """The part of a group without I/O."""

    _core: Registry
    _monitor: MemberMonitor | None = None

    def __init__(self, core: Registry, spec: Spec, look: float, locks: object) -> None:
        self._core = core
        self._spec = spec
        self._locks = locks  # kept alive: a Locks that is garbage-collected acquires no more leases
        self._interval = look
        self._subscriptions: Subscriptions = {JOINED: [], LEFT: [], FAILED: [], UPDATED: []}
        self._mine: list[Any] = []

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._spec.name

    def on_joined(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback(member)`` for each member: first for present members, then for each member that joins.

        Callbacks are called one at a time: in a thread of their own, in asyncio in the loop, where they may be async.
        Returns a function that unsubscribes the callback: from then on no call of it begins. Not awaited.
        Raises TypeError if ``callback`` cannot be called, ShuttingDown if the ``Locks`` is drained or closed."""
        return self._on(JOINED, callback)

    def on_left(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback(member)`` when a member has left. Returns and raises as :meth:`on_joined`."""
        return self._on(LEFT, callback)

    def on_failed(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback(member)`` when a member has missed its heartbeats. Returns and raises as
        :meth:`on_joined`."""
        return self._on(FAILED, callback)

    def on_updated(self, callback: Callback) -> Callable[[], None]:
        """Call ``callback(member)`` when a member has changed its data. Returns and raises as :meth:`on_joined`."""
        return self._on(UPDATED, callback)

    def _on(self, happening: str, callback: Callback) -> Callable[[], None]:
        checks.callback(callback, f"on_{happening}", tasks=self._core.cancel_on_loss)
        self._core.check_giving_out()
        subscription, subscribed = Subscription(callback), self._subscriptions[happening]

        def unsubscribe() -> None:
            subscription.active = False
            if subscription in subscribed:
                subscribed.remove(subscription)

        subscribed.append(subscription)
        try:
            self._monitored()
        except BaseException:
            unsubscribe()
            raise
        return unsubscribe

    def _monitored(self) -> Roster | None:
        """The members as the callbacks saw them last; None if that is too old, or there are no callbacks. Starts the
        monitor if there is none: a forked child does not inherit it, and it ends with its event loop."""
        if not any(self._subscriptions.values()):
            return None
        core = self._core
        with core.mutex:
            monitor = self._monitor
            begins = (monitor is None or monitor.ended()) and core.closed is None and core.draining is None
            if begins:
                monitor = self._monitor = MemberMonitor(core, self.name, self._interval, self._subscriptions)
        if begins and monitor is not None:
            try:
                self._start(monitor)
            except BaseException:  # no thread can be started, or no loop runs here
                monitor.end()  # so that the next call tries again
                raise
        # After a ttl, or if our own membership failed, the other members may have divided the keys anew.
        return None if monitor is None or self._failed() else monitor.recent(self._spec.timing.ttl)

    def _failed(self) -> bool:
        """Whether a membership that was acquired here is lost, and no other one is valid."""
        mine = [each for each in self._mine if state_of(each).generation == self._core.generation]
        return any(each.lost_reason is not None for each in mine) and not any(each.valid for each in mine)

    def _start(self, monitor: MemberMonitor) -> None:
        """Run the monitor in the background, and call its callbacks, until it is over."""
        raise NotImplementedError

    def _joining(self, data: Any) -> Spec:
        return self._spec._replace(data=data, data_text=checks.data_text(data))

    def _joined(self, lease: BaseLease) -> None:
        standing = self._core.standing
        for attempt in [attempt for attempt, each in list(standing.items()) if state_of(each).end is not None]:
            standing.pop(attempt, None)
        standing[state_of(lease).claim.attempt] = lease
        with self._core.mutex:
            others = [each for each in self._mine if state_of(each).end is None and each is not lease]
            before, self._mine = self._mine, [*others, lease]
        del before  # (a destructor does not run under the mutex)
        self._monitored()

    def _updating(self) -> list[Any]:
        if not (mine := [lease for lease in self._mine if lease.valid]):
            raise LookupError(f"this object is no member of group {self.name!r}: call join() first")
        return mine

    def _replaced(self, state: LeaseState, caller: object, done: bool) -> None:
        ended = state.released_by is caller
        after_replacing(self._core, state, caller, done)
        if ended and not done:
            self._core.lose_after_release(state, NOT_UPDATED)  # the member learns of it by ``lost``, too

    def _updated(self, lease: BaseLease, new: BaseLease) -> None:
        """``new`` has taken the lease's place in the store. The user's handle stands for it from now on."""
        exchange(lease, new)
        self._joined(lease)

    def _leaving(self) -> list[Any]:
        with self._core.mutex:
            mine, self._mine = self._mine, []
        return [lease for lease in mine if state_of(lease).end is None]

    def __repr__(self) -> str:
        return f"<leasehold group {self.name!r}>"

"""What is asked of etcd, and how its answers are read. Written once; the drivers do the I/O.

``session.py`` has the stored shape and what one ``Locks`` knows, ``leases.py`` what keeps keys alive. How a lease is
taken is in ``acquiring.py``, waited for in ``queue.py``, kept in ``renewing.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...core import clock
from ...core.log import WARNING, log
from ...core.protocol import SECOND, Ask, Busy, Holding, Renewal, Reply, Steps, Store, Together
from ...errors import StoreNotReady
from . import wire
from .acquiring import Acquiring, deletion
from .errors import DRIVER_ERRORS, GrpcError
from .permit import HELD, RESTING, VERSION, StoredPermit, read_permit
from .queue import EtcdQueue
from .renewing import RenewalOutcome, Renewing
from .session import MOST_OPERATIONS, EtcdSession
from .subscriptions import TAKING, Interest
from .wire import CREATE, EQUAL, MOD, KeyValue, compare, delete, get, put

SHORT = 5.0
"""A rest of fewer seconds is ended by its process: etcd's leases are of whole seconds, two at the least."""
FOLLOWED_AFTER = 1.0
"""Most leases are over by then, and need no watch."""


class EtcdStore(Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    scheme = "etcd"
    fair = True
    lacks: Mapping[str, str] = {}

    def __init__(self, namespace: str) -> None:
        self.session = EtcdSession(namespace)
        self._queue = EtcdQueue(self.session)
        self._acquiring = Acquiring(self.session, self._queue)
        self._renewing = Renewing(self.session, self._acquiring)

    def reset(self) -> None:
        """In a forked child: own nothing."""
        self.session.begin()

    def acquire(self, ask: Ask) -> Steps[Reply]:
        return self._acquiring.acquire(ask)

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        return self._acquiring.acquire_all(asks)

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        return self._acquiring.abandon(name, attempt)

    def renew(self, batch: Sequence[Renewal]) -> Steps[list[RenewalOutcome]]:
        return self._renewing.renew(batch)

    def tidy(self) -> Steps[None]:
        """Nothing to do in etcd: keys go with their leases."""
        self.session.tidy()
        yield from ()

    # Giving back.

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        session = self.session
        held = session.find(name, attempt, token)
        rest = 0.0
        if held is None or held.rest:
            holder = yield from session.holder(name, attempt)
            if holder is not None and holder.rest:
                rest = holder.rest / SECOND - (clock.now() - held.granted if held else 0.0)
        given = yield from self._delete(name, attempt, token, rest)
        if held is not None:
            session.forget(attempt)
        if attempt not in session.held:  # else it is held with another token
            try:
                yield from session.leases.revoke_own(attempt)
            except DRIVER_ERRORS:
                if session.leases.may_hold(attempt):
                    raise
                # It is given back all the same, and its lease, which keeps nothing alive any more, runs out.
        return given

    def _delete(self, name: str, attempt: str, token: int, rest: float) -> Steps[bool]:
        """Delete a holder's key. ``rest``: for so many seconds the name is nobody's."""
        epoch = yield from self.session.known_epoch()
        key = self.session.holder_key(name, attempt)
        changes, lease = [delete(key)], 0
        ends = clock.now() + rest
        if rest > 0 and (holder := (yield from self.session.holder(name, attempt))) is not None:
            lease = yield from self.session.leases.for_rest(name, attempt, rest)
            resting = self.session.holder_key(name, "~" + attempt)
            changes.append(put(resting, holder.resting().dump(), lease))
        same = compare(EQUAL, CREATE, key, max(0, token - epoch))
        given = wire.read_txn((yield wire.txn([same], changes, []))).succeeded and token > epoch
        if given and lease and rest < SHORT:
            self.session.rests.append((ends, lease))
        return given

    def end_rest(self, lease: int) -> Steps[None]:
        """The min_hold of what was released is over, and the lease that kept its name is not."""
        yield from self.session.leases.revoke(lease)

    def farewell(self) -> Steps[None]:
        """Revoke what keeps our holders and waiters alive: all of them are gone, but for what was offered."""
        yield from self.session.leases.end(self.session.offered)

    # Breaking.

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        found = False
        page = yield from self.session.range(*self.session.holders_of(name))
        for key in page.found:
            try:
                holder: StoredPermit | None = read_permit(key)
            except StoreNotReady:
                if not force:
                    raise
                found = wire.read_txn((yield deletion(key))).succeeded or found
                continue
            while holder is not None and (force or holder.state != RESTING):
                if (yield from self._interrupt(holder, force)):
                    found = True
                    break
                again = yield from self.session.range(key.key)
                holder = read_permit(again.found[0]) if again.found else None
        return found

    def _interrupt(self, holder: StoredPermit, force: bool) -> Steps[bool]:
        """Mark or remove one holder, and wake its process. False when it has changed meanwhile."""
        word = self.session.word_to(holder)
        change = delete(holder.key) if force else put(holder.key, holder.interrupted().dump(), holder.lease)
        unchanged = [compare(EQUAL, MOD, holder.key, holder.mod)]
        words = [put(word, b"", holder.lease)] if holder.state != RESTING else []
        try:
            result = wire.read_txn((yield wire.txn(unchanged, [change, *words], [])))
        except GrpcError as error:
            if error.lease_is_gone:
                return False
            if not (error.full and force):
                raise
            result = wire.read_txn((yield wire.txn([], [get(holder.key), change], [])))
            return bool(result.pages[0].found)  # its process notices at its next renewal
        if result.succeeded and words:
            yield wire.txn([], [delete(word)], [])
        return result.succeeded

    # Reading, and notes.

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """A damaged record is about one name: it is left out, and does not hide the others."""
        start = self.session.base + b"h/"
        past = start + after.encode(errors="surrogateescape") + b"\1" if after else b""
        first = start + prefix.encode()
        page = yield from self.session.range(max(first, past), _after(first), limit=count)
        found, upto = page.found, None
        if page.more:
            names = [key.key[len(start) :].partition(b"\0")[0] for key in found]
            upto = names[-1]
            if names[0] == upto:  # one name fills the page
                found = (yield from self.session.range(start + upto, start + upto + b"\1")).found
            else:
                found = [key for key, name in zip(found, names, strict=True) if name != upto]
                upto = next(name for name in reversed(names) if name != upto)
        holders = [permit for key in found if (permit := _read_or_skip(key)) is not None]
        return (yield from self._listed(holders)), None if upto is None else upto.decode(errors="surrogateescape")

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        page = yield from self.session.range(*self.session.holders_of(name))
        return (yield from self._listed([read_permit(key) for key in page.found]))

    def _listed(self, holders: list[StoredPermit]) -> Steps[list[Holding]]:
        names = list(dict.fromkeys(holder.name for holder in holders))
        waiters: dict[str, int] = {}
        for start in range(0, len(names), MOST_OPERATIONS):
            some = names[start : start + MOST_OPERATIONS]
            counts = [get(*self.session.waiters_of(name), count_only=True) for name in some]
            result = wire.read_txn((yield wire.txn([], [*counts, get(self.session.epoch_key)], [])))
            *pages, epoch = result.pages
            self.session.learn_epoch(epoch)  # another than before, if the cluster was made anew
            waiters.update(zip(some, (page.total for page in pages), strict=True))
        return (yield from self.session.seen(holders, waiters))

    def read_note(self, name: str) -> Steps[str | None]:
        page = yield from self.session.range(self._note_key(name))
        if not page.found:
            return None
        version, _, text = page.found[0].value.partition(b" ")
        if version != b"%d" % VERSION:
            raise StoreNotReady(f"the note of {name!r} was written by a newer leasehold: upgrade leasehold")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise StoreNotReady(f"the note of {name!r} is not text: remove {page.found[0].key!r}") from error

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        key = self._note_key(name)
        change = delete(key) if text is None else put(key, b"%d %s" % (VERSION, text.encode()))
        epoch = yield from self.session.known_epoch()
        while True:
            holder = yield from self.session.holder(name, attempt)
            if holder is None or holder.create + epoch != token or holder.state != HELD:
                return False
            unchanged = [compare(EQUAL, MOD, holder.key, holder.mod)]
            if wire.read_txn((yield wire.txn(unchanged, [change], []))).succeeded:
                return True

    def _note_key(self, name: str) -> bytes:
        return self.session.base + b"n/" + name.encode()

    # For the listener.

    def words(self) -> tuple[bytes, bytes]:
        return self.session.words()

    def holder_is_gone(self, interest: Interest) -> Busy:
        return self._queue.holder_is_gone(interest)

    def held_alone(self) -> dict[str, Interest]:
        """By attempt: what has been held for a while on a lease of its own, and the deletion that would end it."""
        before, found = clock.now() - FOLLOWED_AFTER, {}
        for held in list(self.session.held.values()):
            if held.since < before and not self.session.leases.is_shared(held.lease):
                key = self.session.holder_key(held.name, held.attempt)
                found[held.attempt] = Interest(TAKING, held.name, key, key + b"\0", 1)
        return found


def _read_or_skip(key: KeyValue) -> StoredPermit | None:
    try:
        return read_permit(key)
    except StoreNotReady as error:
        log(WARNING, "left out of the listing: %s", error)
        return None


def _after(prefix: bytes) -> bytes:
    """The end of the range of keys that start with the prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))  # never 0xff: no UTF-8 text has that

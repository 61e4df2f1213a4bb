"""What is asked of etcd, and how its answers are read. Written once; the drivers do the I/O.

``reading.py`` has the stored shape and what all operations need, ``asking.py`` how a lease is taken, ``several.py`` how
several are, ``renewing.py`` how it is kept; here is what else becomes of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core import clock
from ...core.protocol import SECOND, Steps, Store
from ...errors import StoreNotReady
from . import wire
from .asking import TAKING, Watch, deletion
from .errors import DRIVER_ERRORS, Refused
from .permit import HELD, RESTING, VERSION, Permit, read_permit
from .renewing import Renewing
from .wire import CREATE, EQUAL, MOD, compare, delete, get, put

SHORT = 5.0
"""A rest of fewer seconds is ended by its process: etcd's leases are of whole seconds, two at the least."""
FOLLOWED_AFTER = 1.0
"""Most leases are over by then, and need no watch."""


class EtcdStore(Renewing, Store):
    """See :class:`leasehold.core.protocol.Store`, which says what each operation means."""

    fair = True
    lacks: Mapping[str, str] = {}

    def release(self, name: str, attempt: str, token: int, hint: Any) -> Steps[bool]:
        held = self.sessions.find(name, attempt, token)
        rest = 0.0
        if held is None or held.rest:
            holder = yield from self._holder(name, attempt)
            if holder is not None and holder.rest:
                rest = holder.rest / SECOND - (clock.now() - held.granted if held else 0.0)
        given = yield from self._delete(name, attempt, token, rest)
        if held is not None:
            self.sessions.forget(attempt)
        if attempt not in self.sessions.held:  # else it is held with another token
            try:
                yield from self.sessions.revoke_own(attempt)
            except DRIVER_ERRORS:
                if self.sessions.may_hold(attempt):
                    raise
                # It is given back all the same, and its lease, which keeps nothing alive any more, runs out.
        return given

    def abandon(self, name: str, attempt: str) -> Steps[bool]:
        """Whatever is still on its way of this attempt must find that it comes too late."""
        try:
            yield from self.sessions.fence()
        except Refused as error:
            if not error.full:
                raise  # else it is made later: until then nothing that is on its way is carried out either
        return (yield from self._withdraw(name, attempt))

    def interrupt(self, name: str, force: bool) -> Steps[bool]:
        found = False
        page = yield from self._range(*self.holders_of(name))
        for key in page.found:
            try:
                holder: Permit | None = read_permit(key)
            except StoreNotReady:
                if not force:
                    raise
                found = wire.read_txn((yield deletion(key))).succeeded or found
                continue
            while holder is not None and (force or holder.state != RESTING):
                if (yield from self._interrupt(holder, force)):
                    found = True
                    break
                again = yield from self._range(key.key)
                holder = read_permit(again.found[0]) if again.found else None
        return found

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        key = self._note_key(name)
        change = delete(key) if text is None else put(key, b"%d %s" % (VERSION, text.encode()))
        epoch = yield from self._known_epoch()
        while True:
            holder = yield from self._holder(name, attempt)
            if holder is None or holder.create + epoch != token or holder.state != HELD:
                return False
            unchanged = [compare(EQUAL, MOD, holder.key, holder.mod)]
            if wire.read_txn((yield wire.txn(unchanged, [change], []))).succeeded:
                return True

    def tidy(self) -> Steps[None]:
        """Nothing to do in etcd: keys go with their leases."""
        self.sessions.tidy()
        self._idle.clear()
        yield from ()

    def farewell(self) -> Steps[None]:
        """Give up what keeps our holders and waiters alive: all of them are gone, but for what was offered."""
        yield from self.sessions.end()

    def end_rest(self, lease: int) -> Steps[None]:
        """The min_hold of what was released is over, and the lease that kept its name is not."""
        yield from self.sessions.revoke(lease)

    def held_alone(self) -> dict[str, Watch]:
        """By attempt: what we have held for a while on a lease of its own, and the deletion that would end it."""
        before, epoch = clock.now() - FOLLOWED_AFTER, self._epoch
        found = {}
        for held in list(self.sessions.held.values()):
            if epoch is not None and not held.shared and held.since < before:
                key = self.holders_of(held.name)[0] + held.attempt.encode()
                found[held.attempt] = Watch(TAKING, held.name, key, key + b"\0", held.token - epoch + 1)
        return found

    def _delete(self, name: str, attempt: str, token: int, rest: float = 0.0) -> Steps[bool]:
        """Give back a holder's key; ``rest``: for so many seconds the name is nobody's."""
        epoch = yield from self._known_epoch()
        start = self.holders_of(name)[0]
        key = start + attempt.encode()
        changes = [delete(key)]
        ends = clock.now() + rest
        if rest > 0:
            lease = yield from self.sessions.for_rest(name, attempt, rest)
            holder = yield from self._holder(name, attempt)
            if holder is not None:
                changes.append(put(start + b"~" + attempt.encode(), holder.resting().dump(), lease))
        result = wire.read_txn((yield wire.txn([compare(EQUAL, CREATE, key, max(0, token - epoch))], changes, [])))
        given = result.succeeded and token > epoch
        if given and len(changes) > 1 and rest < SHORT:
            self.sessions.rests.append((ends, lease))
        return given

    def _interrupt(self, holder: Permit, force: bool) -> Steps[bool]:
        """Mark or remove one holder, and call it. False when it has changed meanwhile."""
        word = self._word_to(holder)
        change = delete(holder.key) if force else put(holder.key, holder.interrupted().dump(), holder.lease)
        unchanged = [compare(EQUAL, MOD, holder.key, holder.mod)]
        calls = [put(word, b"", holder.lease)] if holder.state != RESTING else []
        try:
            result = wire.read_txn((yield wire.txn(unchanged, [change, *calls], [])))
        except Refused as error:
            if error.lease_is_gone:
                return False
            if not (error.full and force):
                raise
            result, calls = wire.read_txn((yield wire.txn([], [get(holder.key), change], []))), []
            return bool(result.pages[0].found)  # it learns at its next renewal
        if result.succeeded and calls:
            yield wire.txn([], [delete(word)], [])
        return result.succeeded

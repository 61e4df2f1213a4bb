"""How several names are taken in one step: one transaction, on the condition that nobody is at any of them."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.protocol import Ask, Busy, Refusal, Steps, Together
from . import wire
from .asking import Asking
from .errors import Refused
from .haste import patient
from .permit import Permit
from .reading import MOST_OPERATIONS
from .wire import CREATE, EQUAL, VALUE, compare, put


class Several(Asking):
    """``acquire_all``: see :class:`leasehold.core.protocol.Store`."""

    def acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        try:
            outcome = yield from patient(self._acquire_all(asks))
        except Refused as error:
            if error.full:
                for ask in asks:
                    yield from self._withdraw(ask.name, ask.attempt)
            raise
        if outcome is None or isinstance(outcome, Refusal):
            for ask in asks:
                yield from self.sessions.revoke_own(ask.attempt)
        return outcome

    def _acquire_all(self, asks: Sequence[Ask]) -> Steps[Together]:
        reads = [read for ask in asks for read in self._reads(ask)]
        if len(reads) > MOST_OPERATIONS:
            return None
        each = len(reads) // len(asks)
        while True:
            epoch = yield from self._known_epoch()
            compares = [compare(EQUAL, VALUE, self._epoch_key, b"%d" % epoch)]
            puts, leases = [], []
            for ask in asks:
                lease = yield from self._lease_for(ask)
                leases.append(lease)
                holders, waiters = self.holders_of(ask.name), self.waiters_of(ask.name)
                compares += [compare(EQUAL, CREATE, first, 0, end) for first, end in (holders, waiters)]
                puts.append(put(holders[0] + ask.attempt.encode(), Permit.taken(ask, self.session).dump(), lease.id))
            for lease in dict.fromkeys(leases):
                compares += lease.unfenced()
            since = [lease.refreshed for lease in leases]
            # They share the lease, or each has one of its own, which needs no fence.
            result = yield from self.sessions.write(leases[0], wire.txn(compares, puts, reads))
            if result is None:
                for lease in leases:
                    self.sessions.lost(lease)
                continue
            if result.succeeded:
                grants = []
                for ask, lease, refreshed in zip(asks, leases, since, strict=True):
                    self._idle.pop(ask.name, None)
                    grants.append(self._granted(ask, result.revision + epoch, lease.id, refreshed))
                return grants
            for place, ask in enumerate(asks):
                view = self._view(ask, result, result.pages[place * each : (place + 1) * each])
                if (mismatch := view.shape(ask)) is not None:
                    return Refusal(place, mismatch)
                if view.holders:
                    return Refusal(place, Busy((yield from self._in_the_way(view, ask.name)), None, None))
                if view.waiters:
                    return None  # whether the first of them is to be passed over, each acquire finds out
            for lease in leases:
                if lease.fence:
                    lease.doubt(lease.fence)  # nothing else is in the way

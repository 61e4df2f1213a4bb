"""Deliberate faults: what the library would be if one thought had been forgotten. Each must turn the tests red."""

from __future__ import annotations

from .mutant import Mutant
from .store_faults import OF_STORES

MUTANTS = [
    Mutant(
        "no deadline: a lease is valid until somebody ends it",
        "core/lease.py",
        "return self._core.now() < self._state.trusted_until()",
        "return self._state.end is None",
    ),
    Mutant(
        "the deadline of a grant counts from the answer",
        "core/acquire.py",
        "return Taken(Claim(ask.name, ask.attempt, token, hint, until), since)",
        "return Taken(Claim(ask.name, ask.attempt, token, hint, until), core.now())",
    ),
    Mutant(
        "the deadline of a renewal counts from the answer",
        "core/keeper.py",
        "core.renewed(state, sent, term, chosen=ttl is not None)",
        "core.renewed(state, core.now(), term, chosen=ttl is not None)",
    ),
    Mutant(
        "no margin for clocks that run at different speeds",
        "core/timing.py",
        "return 0.01 * ttl + 0.05 if drift is None else 2 * drift",
        "return 0.0 if drift is None else 2 * drift",
    ),
    Mutant(
        "blind renew: whoever asks renews what is there",
        "core/entry.py",
        """        holder = self._holder(attempt, token)
        if holder is None or holder.expires <= now:
            return GONE""",
        """        holder = next(iter(self.holders), None)
        if holder is None or holder.expires <= now:
            return GONE""",
        "test_op_",
    ),
    Mutant(
        "blind release: whoever asks frees the name",
        "core/entry.py",
        """        holder = self._holder(attempt, token)
        if holder is None:
            return False""",
        """        holder = next(iter(self.holders), None)
        if holder is None:
            return False""",
    ),
    Mutant(
        "the token is stuck",
        "core/entry.py",
        "self.token = permit.token = max(self.token + 1, wall)",
        "self.token = permit.token = max(self.token, 1)",
    ),
    Mutant(
        "the token starts over at each release",
        "core/entry.py",
        "        self._promote(now, wall)\n        return True",
        "        self.token = 0\n        self._promote(now, wall)\n        return True",
    ),
    Mutant(
        "a renewal that is refused takes the lease again",
        "core/entry.py",
        """        if holder is None or holder.expires <= now:
            return GONE""",
        """        if holder is None or holder.expires <= now:
            again = Permit(attempt, "", "lock", '"revived"', "", 1, ttl, 0, now + ttl, token, now, HELD)
            self.holders = [again]
            return RENEWED""",
    ),
    Mutant(
        "a renewal revives a lease that was past its deadline",
        "core/state.py",
        "if self.end is not None or now >= self.deadline:\n            return False",
        "if self.end is not None and self.end != EXPIRED:\n            return False\n        self.end = None",
    ),
    Mutant(
        "the renewer dies of its first error",
        "core/keeper.py",
        '            log(DEBUG, "housekeeping has to wait: %s", error)',
        "            return",
        "housekeeping_fails and threads",
    ),
    Mutant(
        "renewal stops after an error",
        "core/keeper.py",
        "state.due = now + min(timing.renew_every / 4, 1.0, max(0.02, (state.deadline - now) / 4))",
        'state.due = float("inf")',
    ),
    Mutant(
        "an unknown renewal counts as loss",
        "core/keeper.py",
        "if state.failures >= timing.max_renew_failures:",
        "if True:",
    ),
    Mutant(
        "the wake-up is lost: a waiter that is granted the name is not called",
        "core/entry.py",
        "            self.rings.append((waiter.session, waiter.attempt))\n            moved",
        "            moved",
    ),
    Mutant(
        "a cancelled acquire leaves what it was granted",
        "tasks/runner.py",
        "            await self._give_up([ask], error, born)\n",
        "",
    ),
    Mutant(
        "an expired holder is not replaced",
        "core/entry.py",
        "gone = [holder for holder in self.holders if holder.expires <= now]",
        "gone = []",
    ),
    Mutant(
        "the timer does not tell that a deadline has passed",
        "core/registry.py",
        "if self.end(state, state.why_expired(now))]",
        "if False]",
        "lost_is_set_in_time",
    ),
    Mutant(
        "a loss is told twice",
        "core/registry.py",
        "            if state.end is not None:\n                return False\n            state.end = reason",
        "            state.end = reason",
    ),
    Mutant(
        "a lease that was forgotten by its holder is kept",
        "core/release.py",
        "        if not state.offered:\n            core.give_back_soon(state.claim.owed())",
        "        if False:\n            core.give_back_soon(state.claim.owed())",
    ),
    Mutant(
        "a release whose answer was lost is not tried again",
        "core/release.py",
        "        core.give_back_soon(claim.owed())\n        core.giving.discard(claim.attempt)",
        "        core.giving.discard(claim.attempt)",
    ),
    Mutant(
        "a first term is trusted for the whole ttl",
        "core/acquire.py",
        "return Taken(claim, since, own.first_term)",
        "return Taken(claim, since)",
    ),
    Mutant(
        "a lease that was handed over counts from its arrival",
        "core/acquire.py",
        "since = min(now, granted)",
        "since = now",
    ),
    Mutant(
        "an attempt that asks again does not find its own grant",
        "core/entry.py",
        "if holder.attempt == ask.attempt and holder.state != INTERRUPTED:",
        "if False:",
    ),
    Mutant(
        "the last to come is served first",
        "core/entry.py",
        "waiter = self.queue.pop(0)",
        "waiter = self.queue.pop()",
        "served_in_order",
    ),
    Mutant(
        "an older, late renewal cuts a newer term",
        "core/entry.py",
        "self.expires = max(self.expires, now + ttl)",
        "self.expires = now + ttl",
        "never_shortens",
    ),
    Mutant(
        "a semaphore lets one too many in",
        "core/entry.py",
        "return self.limit - sum(holder.weight for holder in self.holders)",
        "return self.limit - sum(holder.weight for holder in self.holders) + (self.limit > 1)",
    ),
    Mutant(
        "whoever comes overtakes those who wait, if there is room",
        "core/entry.py",
        "if self._free() >= ask.weight and not (self.queue and ask.fair):",
        "if self._free() >= ask.weight:",
    ),
    Mutant(
        "a writer is let in beside readers",
        "core/entry.py",
        "return self.limit - sum(holder.weight for holder in self.holders)",
        "return self.limit - sum(holder.weight for holder in self.holders if holder.weight == self.limit)",
    ),
    Mutant(
        "after a downgrade those who wait are not let in",
        "core/entry.py",
        "        self._promote(now, wall)  # it may be lighter than it was\n",
        "",
    ),
    Mutant(
        "the first release of a re-entrant lock frees the name",
        "kinds/joint/reentrant.py",
        "            if self.entries or self.over:\n                return False",
        "            if self.over:\n                return False",
    ),
    Mutant(
        "whoever waited for what is done once does it again",
        "kinds/once/tasks.py",
        "known = await self._turn(lease, known.wanted)",
        "known = outcomes.Known(known.wanted)",
    ),
    Mutant(
        "a version is done again when its mark has moved",
        "kinds/once/archive.py",
        "    if found is not None or not note.shards >> number & 1:",
        "    if True:",
        "without_its_details",
        special="core/test_once_records",
    ),
    Mutant(
        "a version is done again when its details are no longer kept",
        "kinds/once/note.py",
        "versions = {key: mark_of(each) if key in old else each for key, each in self.versions.items()}",
        "versions = {key: each for key, each in self.versions.items() if key not in old}",
        "details_of_the_last_versions",
    ),
    Mutant(
        "marks leave the note though their shard was not written",
        "kinds/once/archive.py",
        "    if not (yield from write_text(core, held, text, False)):\n        return False",
        "    yield from write_text(core, held, text, False)",
        "lease_of_their_shard",
        special="core/test_once_records",
    ),
    Mutant(
        "an outcome is recorded also by one whose lease has run out",
        "stores/common/entries.py",
        "if not self._entry(row).holds(attempt, token, row.now):",
        "if False:",
        "note_is_written_by_the_holder",
    ),
    Mutant(
        "a leader that cannot renew is told to stop when its term is over, not before",
        "kinds/election/leadership.py",
        "return until - min(self._before, (until - self._state.sent) / 3)",
        "return until",
    ),
    Mutant(
        "who has left a group is told again and again",
        "kinds/group/membership.py",
        "before, self._known = self._known, now",
        "before = self._known\n        self._known = {**before, **now}",
    ),
    Mutant(
        "max_hold is forgotten",
        "core/state.py",
        "if timing.max_hold is not None and now - self.acquired >= timing.max_hold:\n            return False",
        "if False:\n            return False",
    ),
    Mutant(
        "a forked child goes on with its parent's leases",
        "core/registry.py",
        "state.end = state.end or FORKED",
        "pass",
        "fork",
    ),
    Mutant(
        "a lease says that it is valid after its release or loss, until its deadline",
        "core/state.py",
        'return self.deadline if self.end is None and not self.offered else float("-inf")',
        'return self.deadline if not self.offered else float("-inf")',
    ),
    Mutant(
        "a waiter does not look when the holder's time is over",
        "core/places.py",
        "    if busy.expires_in is None:\n        return NEVER",
        "    if True:\n        return NEVER",
    ),
    Mutant(
        "the token counts on, without the clock, so that a store that has forgotten begins again",
        "core/entry.py",
        "self.token = permit.token = max(self.token + 1, wall)",
        "self.token = permit.token = self.token + 1",
    ),
    Mutant(
        "a loss is announced to nobody",
        "core/registry.py",
        "        if reason != RELEASED:\n            state.announce()",
        "        if False:\n            state.announce()",
    ),
    Mutant(
        "an acquire that a thread gives up leaves what it was granted, or its place",
        "threads/runner.py",
        "if acquire.owes(asks[0], error):\n                self.drive(release.abandon(self, asks, error))\n",
        "pass\n",
        "(cancelled_waiter or timed_out or cancelling_just) and threads",
    ),
    Mutant(
        "an acquire that is cancelled during its call leaves what that call brings",
        "threads/runner.py",
        "                pass\n            self.drive(release.abandon(self, asks, error))\n",
        "                pass\n",
        "cancelled_during_its_call and threads",
    ),
    Mutant(
        "a step for several names whose answer was lost leaves what it was granted",
        "core/acquire.py",
        "        yield from abandon(core, asks, error)\n        return None\n    if reply is None",
        "        return None\n    if reply is None",
        "several_names_whose_answer_was_lost_are_acquired",
    ),
    Mutant(
        "several names are asked for in one step, and one that is busy is overlooked",
        "stores/common/entries.py",
        "                if isinstance(reply, (Busy, Mismatch)):\n                    return Refusal(place, reply)\n",
        "                if isinstance(reply, (Busy, Mismatch)):\n                    reply = Grant(1)\n",
        "busy_name_is_found or another_shape_is_refused",
    ),
    Mutant(
        "what was broken is renewed all the same",
        "core/entry.py",
        "        if holder.state == INTERRUPTED:\n            return BROKEN\n        holder.hold",
        "        holder.hold",
    ),
    Mutant(
        "who has offered a lease to another trusts it still",
        "core/release.py",
        "    state.offered = True\n    state.wake()",
        "    state.wake()",
    ),
    Mutant(
        "what two accept is had by both",
        "core/entry.py",
        "        self.holders.remove(old)\n        self._grant(mine, now, wall)",
        "        self._grant(mine, now, wall)",
    ),
    Mutant(
        "a body that is silent keeps its lease",
        "core/state.py",
        "return timing.beat_every is None or now - self.last_beat < timing.beat_every",
        "return True",
    ),
    Mutant(
        "what a drain gives up has no time to stop",
        "core/drain.py",
        "            core.lose(state, DRAINED)\n",
        "            pass\n",
    ),
    Mutant(
        "what was under way when a drain began is given out",
        "core/acquire.py",
        "            core.check_giving_out(ask.heir)  # a close or a drain since",
        "            core.check_open()  # a close or a drain since",
    ),
    Mutant(
        "the keeper never refreshes the places of its waiters",
        "core/acquire.py",
        "                bell.place = place\n",
        "                pass\n",
    ),
    Mutant(
        "what the keeper learns of a place does not reach its waiter",
        "core/places.py",
        "            place.refreshed(busy, sent, now)",
        "            pass",
    ),
    Mutant(
        "a waiter relies on the keeper for ever",
        "core/places.py",
        "        self.until = due + late\n",
        "        self.until = due + (NEVER if self.kept else 0.0)\n",
    ),
    *OF_STORES,
]

"""Shared by both drivers of :mod:`leasehold.stores.redlock`: jobs for a node, its health, and counting answers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...core import clock
from ...errors import StoreError, StoreUnavailable
from ..redis.errors import translate
from ..redis.requests import FindKeys, ScriptCall, ScriptCalls
from ..redis.scripts import ABANDON, ACQUIRE, RELEASE, VOTE
from .store import SLOWEST, Poll, Tell

REST = 0.5
"""Seconds that a failed node rests: jobs for it fail at once meanwhile."""
MOST_OWED = 10_000
"""Most calls that are kept for a node that failed."""
_AT_ONCE = 200
"""Most owed calls that are sent together."""
_ENDS = {ABANDON: 1, RELEASE: 2}
"""Scripts that end an attempt, or one try of it, and the position of the argument that makes them leave a mark."""


Request: TypeAlias = ScriptCall | ScriptCalls | FindKeys


class Job(NamedTuple):
    """A request to one node, and the callback for its answer."""

    request: Request | Callable[[], Request | None]
    """Or a function that returns it when the node reaches the job; None if nothing is left to do."""
    limit: float
    done: Callable[[Any], None]
    owed_until: float
    """If it fails, it is retried until then; 0: never."""
    awaited_until: float
    """When the caller stops waiting."""
    insists: bool
    """Whether it is sent even if the node rests."""


class Node(Protocol):
    """One Redis. Its jobs run one after the other, in the order of ``put``."""

    health: Health

    def put(self, job: Job) -> None: ...


class Health:
    """Whether a node works, and the calls that it owes: they failed before, and are sent before any other call."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._owed: deque[Job] = deque(maxlen=MOST_OWED)
        self._rests_until = 0.0
        self._error: StoreError | None = None
        # By attempt, the number of its last try that failed here: the try may still arrive (mark.lua).
        self._late: dict[bytes, bytes] = {}

    def excuse(self, job: Job) -> StoreError | None:
        """Why the job is not sent: its caller stopped waiting, or the node rests. None: it is to be sent."""
        error: StoreError | None = None
        if clock.now() > job.awaited_until:
            error = StoreUnavailable(f"{self._where}: timed out waiting for earlier calls to this node")
        elif not job.insists and self.resting():
            error = self._error
        if error is not None:
            self._note(job)
        return error

    def resting(self) -> bool:
        return self._error is not None and clock.now() < self._rests_until

    def failed(self, job: Job | None, error: BaseException) -> StoreError:
        """Note that a job failed: the node rests. Returns the error in leasehold's terms."""
        self._error = translate(error, self._where)
        self._error.__cause__ = error
        self._rests_until = clock.now() + REST
        if job is not None:
            self._note(job)
            for call in job.request.calls if isinstance(job.request, ScriptCalls) else (job.request,):
                if isinstance(call, ScriptCall) and call.script in (ACQUIRE, VOTE):
                    while len(self._late) >= MOST_OWED:
                        del self._late[next(iter(self._late))]
                    self._late[call.args[0]] = call.args[12]
        return self._error

    def worked(self, job: Job) -> None:
        """Note that a job succeeded."""
        self._error = None
        self._done(job.request)

    def prepare(self, job: Job) -> Job | None:
        """The job as it is to be sent now. If a try of an attempt failed here, the call that ends it leaves a mark."""
        request = job.request() if not isinstance(job.request, tuple) else job.request
        return None if request is None else job._replace(request=self._marked(request))

    def _marked(self, request: Request) -> Request:
        if self._late and isinstance(request, ScriptCall) and request.script in _ENDS:
            number = self._late.get(request.args[0])
            if number is not None:
                place = _ENDS[request.script]
                args = (*request.args[:place], number, *request.args[place + 1 :])
                return ScriptCall(request.script, request.keys, args)
        return request

    def _done(self, request: Any) -> None:
        if self._late and isinstance(request, ScriptCall) and request.script in _ENDS:
            self._late.pop(request.args[0], None)

    def owes(self) -> bool:
        return bool(self._owed)

    def debts(self) -> Iterator[Sequence[ScriptCall]]:
        """The owed calls, in batches. A batch counts as done when the next one is requested."""
        while self._owed:
            some = list(islice(self._owed, _AT_ONCE))
            now = clock.now()
            owed = [job.request for job in some if job.owed_until > now and isinstance(job.request, ScriptCall)]
            calls = [call for call in map(self._marked, owed) if isinstance(call, ScriptCall)]
            if calls:
                yield calls
            for call in calls:
                self._done(call)
            for _ in some:
                self._owed.popleft()

    def _note(self, job: Job) -> None:
        if job.owed_until:
            self._owed.append(job)


class Ballot:
    """The answers to one poll. ``decided`` is called once: when the answers are enough, or complete."""

    def __init__(self, nodes: int, poll: Poll, decided: Callable[[], object]) -> None:
        self._answers: dict[int, Any] = {}
        self._nodes = nodes
        self._enough = poll.enough
        self._heard = poll.heard
        self._decided = decided
        self._mutex = threading.Lock()
        self._open = True

    def vote(self, node: int, answer: Any) -> None:
        with self._mutex:
            if self._heard is not None:
                self._heard[node] = answer
            if not self._open:
                return
            self._answers[node] = answer
            if len(self._answers) == self._nodes or self._enough(self._answers):
                self._open = False
                self._decided()

    def close(self) -> dict[int, Any]:
        with self._mutex:
            self._open = False
            return self._answers


def ask(nodes: Sequence[Node], poll: Poll, left: float, decided: Callable[[], object]) -> Ballot:
    """Send the request to all nodes.

    Resting nodes are normally skipped. If a majority rests, all nodes are asked: there is no majority without them, and
    it may have been this process that stood still.
    """
    insists = sum(node.health.resting() for node in nodes) > (len(nodes) - 1) // 2
    ballot = Ballot(len(nodes), poll, decided)
    now = clock.now()
    owed_until = now + poll.owed if poll.owed else 0.0
    limit, awaited_until = min(poll.patience, left), now + awaited(poll, left)
    for number, node in enumerate(nodes):
        node.put(Job(poll.request, limit, partial(ballot.vote, number), owed_until, awaited_until, insists))
    return ballot


def awaited(poll: Poll, left: float) -> float:
    """Seconds to wait for the answers. A node may have to finish earlier jobs first."""
    return max(0.0, min(left, poll.patience * 2))


def tell(nodes: Sequence[Node], message: Tell) -> None:
    """Send the message to all nodes, without waiting for answers."""
    until = clock.now() + message.until
    for number, node in enumerate(nodes):
        if isinstance(message.what, ScriptCall):
            node.put(Job(message.what, SLOWEST, _nobody, until, until, insists=False))
        else:
            node.put(Job(partial(message.what, number), SLOWEST, _nobody, 0.0, until, insists=False))


def _nobody(answer: Any) -> None:
    """Ignores the answer: no caller waits for it."""

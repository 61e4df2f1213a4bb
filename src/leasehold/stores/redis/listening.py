"""What a listener does with what it hears, for both drivers. Without I/O."""

from __future__ import annotations

from collections.abc import Callable

from ...core.log import WARNING, log
from ...errors import StoreUnavailable
from . import limits
from .errors import DRIVER_ERRORS
from .store import CHANNEL, RedisStore, read_ring


class SessionListener:
    """Wakes the waiters of one ``Locks`` by what is published on its channel, and while nobody can listen."""

    def __init__(self, store: RedisStore, where: str) -> None:
        self.on_ring: Callable[..., None] = lambda attempt, news=None: None
        self._store = store
        self._where = where
        self.reset()

    def reset(self) -> None:
        self.up = False
        self.closed = False
        self.waiting: set[str] = set()
        self._told = False
        """Whether the outage was logged: once, however long it takes."""
        self._asked = False
        self.pause = limits.SOON

    @property
    def channel(self) -> str:
        return CHANNEL + self._store.session.decode()

    def forget(self, attempt: str) -> None:
        self.waiting.discard(attempt)
        self._store.forget(attempt)

    def begin(self) -> None:
        """A subscription stands."""
        self.up, self._told, self._asked, self.pause = True, False, False, limits.SOON
        self.ring_all()  # for what was published before

    def hear(self, payload: bytes | None) -> bool:
        """What a subscription has read. True if the server is to be asked for a sign of life."""
        if payload:
            attempt, leads = read_ring(payload)
            if attempt is not None:
                self._ring(attempt, leads)
        elif payload is None and self._asked:
            raise StoreUnavailable("the server does not answer")
        self._asked = payload is None
        return self._asked

    def end(self, error: BaseException | None) -> None:
        """The subscription is over, or could not be had: the waiters poll, and what is held is looked at."""
        self.up = False
        if self.closed:
            return
        if error is not None and not isinstance(error, DRIVER_ERRORS):
            log(WARNING, "%s: listener failed unexpectedly; retrying: %s", self._where, error, exc=error)
        elif error is not None and not self._told:
            self._told = True
            log(WARNING, "%s: listener failed, waiters poll until it is back: %s", self._where, error)
        self.ring_all()

    def next_pause(self) -> float:
        """Seconds before the next try."""
        pause, self.pause = self.pause, min(self.pause * 2, limits.LATER)
        return pause

    def ring_all(self) -> None:
        for attempt in (*self.waiting, ""):
            self._ring(attempt)

    def _ring(self, attempt: str, leads: bool = False) -> None:
        """The waiter asks the store: anybody may publish on our channel, so nothing that a push says is believed."""
        self._store.called(attempt, leads)
        self.on_ring(attempt)

"""The SQLite store's driver for threads: a listener thread waits for rings and for the death of holders."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from ...protocol import Busy, Steps, T
from ...ready import kernel_polls, readable
from ...starting import Life, start_thread
from ..fifo import POKE, Descriptor
from .store import Database

LOG_LEFT = 512 * 1024
"""The longest write-ahead log that is left behind: 0.6 ms for the next to read, and 60 runs."""
LOOK_EVERY = 0.5
"""How often to look for holders that have died, where nothing tells of it: under gevent and eventlet."""


class SqliteThreads:
    def __init__(self, path: str, namespace: str) -> None:
        self.database = Database(path, namespace)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may acquire where it has interrupted an acquire
        self._life: Life | None = None
        self._watched: dict[str, Mapping[str, Descriptor]] = {}
        """By attempt: the sessions it watches. Never changed, but replaced: a signal handler may come at any time."""
        self._closed = False

    @property
    def on_ring(self) -> Callable[[str], None]:
        return self.database.on_ring

    @on_ring.setter
    def on_ring(self, callback: Callable[[str], None]) -> None:
        self.database.on_ring = callback

    def run(self, steps: Steps[T], limit: float) -> T:
        return self.database.run(steps, limit)

    def at_rest(self) -> AbstractContextManager[None]:
        return self.database.at_rest()

    def listen(self, attempt: str, busy: Busy | None) -> bool:
        """Watch the holders' sessions for this attempt if it is next."""
        bell = self.database.bell
        if bell.fd < 0:
            return False
        head = busy is not None and not busy.place
        changed = self._watch(attempt, tuple(busy.watch) if busy is not None and head else ())
        if self._closed:
            return False
        if self._life is None:
            try:
                start_thread("leasehold-sqlite", self._listen)
            except RuntimeError:
                return False  # no thread to be had: the waiter polls, and the next one tries again
        elif changed:
            bell.poke()
        return busy is None or bell.can_be_rung()

    def forget(self, attempt: str) -> None:
        if self._watched.pop(attempt, None) is not None:
            self.database.bell.poke()  # the listener lets go of what only it has

    def _watch(self, attempt: str, sessions: tuple[str, ...]) -> bool:
        """Watch just these sessions for the attempt. True when that is a change."""
        old = self._watched.get(attempt, {})
        if tuple(old) == sessions:
            return False
        new = {}
        for session in sessions:
            watch = old[session] if session in old else self.database.bell.watch(session)
            if watch is None:  # died between the answer and now
                self.on_ring(attempt)
            else:
                new[session] = watch
        if new:
            self._watched[attempt] = new
        else:
            self._watched.pop(attempt, None)
        return True

    def _listen(self) -> None:
        with Life() as life:
            with self._mutex:
                if self._life is not None or self._closed:
                    return  # two have been started
                self._life = life
            self._keep_listening()

    def _keep_listening(self) -> None:
        bell = self.database.bell
        while not self._closed:
            watches: dict[int, tuple[str, str, Descriptor]] = {}
            for attempt, watched in list(self._watched.items()):
                for session, watch in watched.items():
                    if watch.fd >= 0:
                        watches[watch.fd] = attempt, session, watch
            for fd in self._wait(watches):
                if fd in watches:
                    attempt, _, watch = watches[fd]
                    watch.close()
                    self.on_ring(attempt)
                else:
                    for attempt in bell.read():
                        if attempt != POKE:
                            self.on_ring(attempt)

    def _wait(self, watches: Mapping[int, tuple[str, str, Descriptor]]) -> list[int]:
        """Our FIFO when there is something in it, and those of ``watches`` whose session has died."""
        bell = self.database.bell
        if kernel_polls():
            poll = select.poll()
            for fd in watches:
                poll.register(fd, 0)
            poll.register(bell.fd, select.POLLIN)
            return [fd for fd, _ in poll.poll()]
        rung = [bell.fd] if readable(bell.fd, within=LOOK_EVERY if watches else None) else []
        return rung + [fd for fd, (_, session, _) in watches.items() if not bell.alive(session)]

    def close(self) -> None:
        self._closed = True
        self._watched.clear()
        with self._mutex:  # a thread that has just been started either is known here, or sees that all is over
            life = self._life
        if life is not None:
            self.database.bell.poke()
            life.join(1.0)
        self.database.disconnect()

    @property
    def life(self) -> str | None:
        """A file by which others tell that this session lives: as long as any process has it open for reading."""
        bell = self.database.bell
        return bell.path if bell.fd >= 0 else None

    def leave(self) -> None:
        """Instead of ``close`` when nothing is held and the process ends at once, as every ``leasehold run`` does.

        The last one to close a database copies the write-ahead log into it and syncs both, and the next to write
        syncs a new log: 20 ms of each run on a file that nobody else uses. Without that, whoever opens it next finds
        the log as it is, and only has to read it; so it is not left to grow long.
        """
        try:
            short = os.stat(self.database.path + "-wal").st_size <= LOG_LEFT
        except OSError:
            short = False
        if short:
            self.database.bell.unlink()
        else:
            self.close()

    def after_fork(self) -> None:
        """In the child: new mutex, no thread, and the parent's watches closed."""
        for watched in list(self._watched.values()):
            for watch in watched.values():
                watch.close()
        self._reset()
        self.database.after_fork()

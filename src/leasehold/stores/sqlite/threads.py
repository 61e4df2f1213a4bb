"""The SQLite store's driver for threads: a listener thread waits for wake-ups and for the death of holders."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from ...core.protocol import Busy, Steps, T
from ...runtime.ready import kernel_polls, readable
from ...runtime.thread_start import Life, start_thread
from ..common.doorbell import POKE, Descriptor
from .store import Database

LOG_LEFT = 512 * 1024
"""Bytes of the longest write-ahead log that ``leave`` leaves behind: 60 runs, read by the next process in 0.6 ms."""
LOOK_EVERY = 0.5
"""Seconds between checks for dead holders under gevent and eventlet, whose polls do not report them."""


class SqliteThreads:
    def __init__(self, path: str, namespace: str) -> None:
        self.database = Database(path, namespace)
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may acquire in the middle of an acquire
        self._life: Life | None = None
        self._watched: dict[str, Mapping[str, Descriptor]] = {}
        """By attempt, the sessions that it watches. The inner mappings are replaced, never changed, because a signal
        handler can interrupt at any time."""
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
        """Watch the sessions of the holders for this attempt, if it is the next waiter. Whether push works."""
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
                return False  # no thread can be started: this waiter polls, and the next one tries again
        elif changed:
            bell.poke()
        return busy is None or bell.can_be_rung()

    def forget(self, attempt: str) -> None:
        if self._watched.pop(attempt, None) is not None:
            self.database.bell.poke()  # so that the listener drops the descriptors

    def _watch(self, attempt: str, sessions: tuple[str, ...]) -> bool:
        """Watch exactly these sessions for the attempt. Returns whether that is a change."""
        old = self._watched.get(attempt, {})
        if tuple(old) == sessions:
            return False
        new = {}
        for session in sessions:
            watch = old[session] if session in old else self.database.bell.watch(session)
            if watch is None:  # died since the store answered
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
                    return  # another one listens already
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
        """Wait, then return the descriptors that are ready: our FIFO if it can be read, watches of dead sessions."""
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
        with self._mutex:  # a thread that was just started is either known here, or sees _closed
            life = self._life
        if life is not None:
            self.database.bell.poke()
            life.join(1.0)
        self.database.disconnect()

    @property
    def life(self) -> str | None:
        """The FIFO of this session, which counts as alive as long as any process has this file open for reading."""
        bell = self.database.bell
        return bell.path if bell.fd >= 0 else None

    def leave(self) -> None:
        """Instead of ``close``, when nothing is held and the process ends at once, as every ``leasehold run`` does.

        The last process to close a database copies the write-ahead log into it and syncs both, and the next writer
        syncs a new log: 20 ms per run on an otherwise unused file. Without the copy, the next process only reads the
        log. A log longer than ``LOG_LEFT`` is copied.
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
        """In the child: use a new mutex and no thread, and close the parent's watches."""
        for watched in list(self._watched.values()):
            for watch in watched.values():
                watch.close()
        self._reset()
        self.database.after_fork()

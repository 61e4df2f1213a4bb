"""The parent's end of :mod:`leasehold.testing.child`."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import Any

from .api import PATIENCE
from .store import StoreUnderTest


class ChildFailed(AssertionError):
    """A command raised an exception in the child. ``kind`` is its class name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"in the child: {kind}: {message}")
        self.kind = kind


class Process:
    """Another process with a ``Locks`` of its own."""

    def __init__(self, store: StoreUnderTest, side: str, namespace: str) -> None:
        config = {"url": store.url, "opener": store.opener, "side": side, "namespace": namespace}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "leasehold.testing.child", json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="conformance-child", daemon=True)
        self._reader.start()
        self.killed = self.forgetful = False
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, command: str, **arguments: Any) -> Any:
        """Send a command and return its answer. Raises ChildFailed."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        if not self._ready:
            self._ready = True
            self.answer()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        try:
            line = self._lines.get(timeout=PATIENCE)
        except queue.Empty:
            raise AssertionError("the child does not answer") from None
        if not line:
            raise AssertionError(f"the child has ended with {self._process.wait(PATIENCE)}")
        found = json.loads(line)
        if "error" in found:
            raise ChildFailed(found["error"], found["message"])
        return found["answer"]

    def kill(self) -> None:
        self.killed = True
        self._process.kill()
        self._process.wait(PATIENCE)

    def forget_to_close(self) -> None:
        """End the child without closing its ``Locks``."""
        self.forgetful = True
        self.do("forget_to_close")

    def pause(self) -> None:
        """Stop the child while it holds a lease, and return when it has stopped."""
        self.send("stop")
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.answer()

    def close(self) -> None:
        """End the child normally; kill it if it does not end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
        except (OSError, subprocess.TimeoutExpired):
            self.kill()
        self._reader.join(PATIENCE)
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

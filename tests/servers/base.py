"""What every server of the tests can do: start, stop, be killed, paused and restarted."""

import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from . import find, ports, reaper
from .process import Group
from .wire import HOST


class NotReady(Exception):
    """A server gave an answer, but not that of a server at work."""


class DidNotStart(Exception):
    """A server did not come up; the text ends with the tail of its log."""


class Server:
    """One server on a port and in a folder of its own, both the same for all its restarts.

    Each kind says how to `prepare` its data, the `command` that starts it, its `url`, and how to `ping` it: a
    question that only a server which is ready for work answers. `env` is added to the server's environment.
    """

    kind: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    ready_within: ClassVar[float] = 100.0

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        self.program = str(find.require(self.kind))
        self.port = ports.take()
        self.env = dict(env or {})
        self.folder = Path(tempfile.mkdtemp(prefix=f"leasehold-{self.kind}-"))
        reaper.tell("folder", self.folder)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._extra_ports: list[int] = []
        self._group: Group | None = None

    # --- said by each kind ----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """What `leasehold.connect` takes."""
        return f"{self.kind}://{self.address}"

    def prepare(self) -> None:
        """Fill the empty `data` folder, where the server doesn't do that itself."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def before(self) -> list[str]:
        """What starts the programs of this server, such as a change of user."""
        return []

    def ping(self, timeout: float) -> None:
        """Ask the server something; OSError, EOFError or NotReady when it is not at work."""
        raise NotImplementedError

    # --- the same for all -----------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def answers(self, timeout: float = 1.0) -> bool:
        try:
            self.ping(timeout)
        except (OSError, EOFError, NotReady):
            return False
        return True

    def start(self) -> Self:
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting: members of a cluster are ready only together."""
        if not self.data.exists():
            self.data.mkdir()
            self.prepare()
        self._group = self._run(self.command())

    def wait_ready(self) -> None:
        end = time.monotonic() + self.ready_within
        while not self.answers():
            code = self.processes.poll()
            if code is not None or time.monotonic() > end:
                self.kill()
                how = f"is not ready after {self.ready_within:g} s" if code is None else f"ended with {code}"
                raise DidNotStart(f"{self.kind} on port {self.port} {how}; {self.log_tail()}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Ask it to end, as an administrator would; kill it if it doesn't."""
        if self._group is not None:
            self.resume()
            self._group.ask(self.stop_signal)
            self._group.wait(15)
            self.kill()

    def kill(self) -> None:
        """SIGKILL to it and its children; back when all are gone."""
        if self._group is not None:
            self._group.kill()
            self._group = None

    def restart(self, *, wipe: bool = False) -> None:
        """Stop it if it runs and start it on the same port, with its data or (wipe) without."""
        self.stop()
        if wipe:
            shutil.rmtree(self.data)
        self.start()

    def pause(self) -> None:
        """SIGSTOP to all of it: connections stay, the kernel accepts new ones, but nobody answers."""
        self.processes.pause()

    def resume(self) -> None:
        self.processes.signal(signal.SIGCONT)

    def close(self) -> None:
        """The end: no process, no folder, no port is left."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        ports.give_back(self.port, *self._extra_ports)

    def extra_port(self) -> int:
        """One more port, ours as long as this server lives."""
        self._extra_ports.append(ports.take())
        return self._extra_ports[-1]

    def run(self, *command: str | Path) -> None:
        """Run a helper such as initdb in the server's way, its output in the server's log."""
        group = self._run(command)
        code = group.wait(100)
        group.kill()
        if code != 0:
            raise DidNotStart(f"{command[0]} ended with {code}; {self.log_tail()}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    @property
    def processes(self) -> Group:
        """Its processes. RuntimeError when there are none."""
        if self._group is None:
            raise RuntimeError(f"{self!r} is not running")
        return self._group

    def _run(self, command: Sequence[str | Path]) -> Group:
        # By `env`, so that libfaketime finds its way into the server but not into what changes the user.
        # TMPDIR, because MariaDB begins by deleting the temporary tables that it finds there, of all servers.
        variables = [f"{name}={value}" for name, value in {"TMPDIR": self.folder, **self.env}.items()]
        return Group([*self.before(), "env", *variables, *command], self.log)

    def log_tail(self) -> str:
        return f"its log ends:\n{self.log.read_text(errors='replace')[-3000:]}"

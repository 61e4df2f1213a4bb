"""Redis and Valkey, a single server of each."""

from collections.abc import Mapping

from .base import NotReady, Server
from .wire import HOST, Wire

Reply = bytes | int | list["Reply"] | None


def ask(port: int, *words: object, timeout: float = 10.0) -> Reply:
    """Send one command and return its reply; an error reply is NotReady."""
    parts = [str(word).encode() for word in words]
    with Wire(port, timeout) as wire:
        wire.send(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(p), p) for p in parts))
        return _reply(wire)


def _reply(wire: Wire) -> Reply:
    line = wire.line()
    mark, rest = line[:1], line[1:-2]
    match mark:
        case b"+":
            return rest
        case b":":
            return int(rest)
        case b"$":
            return None if rest == b"-1" else wire.read(int(rest) + 2)[:-2]
        case b"*":
            return [_reply(wire) for _ in range(int(rest))]
        case _:
            raise NotReady(rest.decode())


class Redis(Server):
    """A single server. Only with `append_only` does it keep its data when killed or restarted."""

    kind = "redis"

    def __init__(self, *options: str, append_only: bool = False, env: Mapping[str, str] | None = None) -> None:
        super().__init__(env=env)
        self.options = [*options, "--appendonly", "yes" if append_only else "no"]

    @property
    def url(self) -> str:
        return f"redis://{self.address}/0"

    def command(self) -> list[str]:
        where = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.data)]
        return [self.program, *where, "--save", "", *self.options]

    def ping(self, timeout: float) -> None:
        if ask(self.port, "PING", timeout=timeout) != b"PONG":
            raise NotReady("no PONG")


class Valkey(Redis):
    kind = "valkey"

"""ZooKeeper: a single server or an ensemble of three."""

import struct

from .base import NotReady, Server
from .ensemble import Ensemble
from .wire import HOST, Wire


def word(port: int, four_letters: str, timeout: float = 1.0) -> str:
    """The answer to one of the administrator's four-letter words."""
    with Wire(port, timeout) as wire:
        wire.send(four_letters.encode())
        return wire.rest().decode()


CREATE, GET_DATA = 1, 4


def request(port: int, operation: int, body: bytes, timeout: float = 5.0) -> bytes:
    """One request in a session of its own; an error code is NotReady."""
    # Version, last transaction seen, session timeout in ms, no earlier session and its 16 byte password.
    hello = struct.pack("!iqiq", 0, 0, 4000, 0) + text("\0" * 16)
    with Wire(port, timeout) as wire:
        for message in (hello, struct.pack("!ii", 1, operation) + body):
            wire.send(struct.pack("!i", len(message)) + message)
            reply = wire.read(struct.unpack("!i", wire.read(4))[0])
    _request, _transaction, error = struct.unpack_from("!iqi", reply)
    if error:
        raise NotReady(f"error {error}")
    return reply[16:]


def text(value: str) -> bytes:
    """Text and bytes alike: their length, then themselves."""
    return struct.pack("!i", len(value.encode())) + value.encode()


def create(port: int, path: str, value: str) -> None:
    anyone = struct.pack("!ii", 1, 31) + text("world") + text("anyone")
    request(port, CREATE, text(path) + text(value) + anyone + struct.pack("!i", 0))


def get(port: int, path: str) -> str:
    reply = request(port, GET_DATA, text(path) + b"\0")
    return reply[4 : 4 + struct.unpack_from("!i", reply)[0]].decode()


class ZooKeeper(Server):
    kind = "zookeeper"

    def __init__(self) -> None:
        memory = "-Xmx96m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        super().__init__(env={"JDK_JAVA_OPTIONS": memory})
        self.follow_port, self.vote_port = self.extra_port(), self.extra_port()
        self.together: list[ZooKeeper] = [self]

    def prepare(self) -> None:
        number = self.together.index(self) + 1
        (self.data / "myid").write_text(str(number))

    def command(self) -> list[str]:
        settings = {
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": HOST,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "initLimit": 10,
            "syncLimit": 4,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "forceSync": "no",
        }
        if len(self.together) > 1:
            for number, member in enumerate(self.together, 1):
                settings[f"server.{number}"] = f"{HOST}:{member.follow_port}:{member.vote_port}"
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return [self.program, str(config)]

    def ping(self, timeout: float) -> None:
        self.mode(timeout)

    def mode(self, timeout: float = 1.0) -> str:
        """standalone, leader or follower."""
        _, found, rest = word(self.port, "srvr", timeout).partition("Mode: ")
        if not found:
            raise NotReady("it does not serve requests")
        return rest.split()[0]


class ZooKeeperEnsemble(Ensemble):
    members: list[ZooKeeper]

    def __init__(self, members: int = 3) -> None:
        self.members = [ZooKeeper() for _ in range(members)]
        for member in self.members:
            member.together = self.members

    def leads(self, member: Server) -> bool:
        assert isinstance(member, ZooKeeper)
        try:
            return member.mode() == "leader"
        except (OSError, NotReady):
            return False

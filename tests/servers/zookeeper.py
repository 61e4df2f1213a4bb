"""ZooKeeper: a single server or an ensemble of three."""

import struct

from .base import NotReady, Server
from .ensemble import Ensemble
from .netns import Member, Networks
from .wire import HOST, Wire


def word(port: int, four_letters: str, timeout: float = 20.0, host: str = HOST) -> str:
    """The answer to one of the administrator's four-letter words."""
    with Wire(port, timeout, host) as wire:
        wire.send(four_letters.encode())
        return wire.rest().decode()


CREATE, GET_DATA, CLOSE = 1, 4, -11


def request(port: int, operation: int, body: bytes, timeout: float = 20.0) -> bytes:
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


def end_session(port: int, session: int, password: bytes, timeout: float = 20.0, host: str = HOST) -> bool:
    """End another's session, as the server does when it has not heard of it. False when its owner, who is cut off by
    this and comes back at once, was faster."""
    hello = struct.pack("!iqiqi", 0, 0, 10_000, session, len(password)) + password
    with Wire(port, timeout, host) as wire:
        for message in (hello, struct.pack("!ii", 1, CLOSE)):
            wire.send(struct.pack("!i", len(message)) + message)
        try:
            answer = wire.read(struct.unpack("!i", wire.read(4))[0])
            _version, _timeout, found = struct.unpack_from("!iiq", answer)
            if not found:  # it was over already
                return True
            wire.read(struct.unpack("!i", wire.read(4))[0])
        except (EOFError, ConnectionError):
            return False
    return True


def text(value: str) -> bytes:
    """Text and bytes alike: their length, then themselves."""
    return struct.pack("!i", len(value.encode())) + value.encode()


def create(port: int, path: str, value: str) -> None:
    anyone = struct.pack("!ii", 1, 31) + text("world") + text("anyone")
    request(port, CREATE, text(path) + text(value) + anyone + struct.pack("!i", 0))


def get(port: int, path: str) -> str:
    reply = request(port, GET_DATA, text(path) + b"\0")
    return reply[4 : 4 + struct.unpack_from("!i", reply)[0]].decode()


class ZooKeeper(Member):
    """``java`` is added to the options of its Java, ``settings`` to its configuration; there a None takes one out."""

    kind = "zookeeper"

    def __init__(self, *java: str, **settings: object) -> None:
        # A follower that lacks some of the log acknowledges that before it acknowledges its leader, as a race will have
        # it, and the two of them begin anew, again and again, for half a minute (ZOOKEEPER-4685, seen with 3.8.0).
        # Sent a snapshot, it lacks nothing.
        always = ("-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSnapshotSync=true")
        super().__init__(env={"JDK_JAVA_OPTIONS": " ".join((*always, *java))})
        self.settings = settings
        self.follow_port, self.vote_port = self.extra_port(), self.extra_port()
        self.together = [self]

    def prepare(self) -> None:
        number = self.together.index(self) + 1
        (self.data / "myid").write_text(str(number))

    def command(self) -> list[str]:
        settings: dict[str, object] = {
            "dataDir": self.data,
            "clientPort": self.port,
            "clientPortAddress": self.host,
            "tickTime": 500,
            "minSessionTimeout": 1000,
            "maxSessionTimeout": 120_000,
            "initLimit": 10,
            "syncLimit": 4,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "forceSync": "no",
            **self.settings,
        }
        if len(self.together) > 1:
            for number, member in enumerate(self.together, 1):
                settings[f"server.{number}"] = f"{member.peer_host}:{member.follow_port}:{member.vote_port}"
        config = self.folder / "zoo.cfg"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items() if value is not None))
        return [self.program, str(config)]

    def ping(self, timeout: float) -> None:
        self.mode(timeout)

    def mode(self, timeout: float = 1.0) -> str:
        """standalone, leader or follower."""
        _, found, rest = word(self.port, "srvr", timeout, self.host).partition("Mode: ")
        if not found:
            raise NotReady("it does not serve requests")
        return rest.split()[0]


class ZooKeeperEnsemble(Ensemble):
    members: list[ZooKeeper]

    def __init__(self, members: int = 3, networks: Networks | None = None) -> None:
        self.members = [ZooKeeper() for _ in range(members)]
        for member in self.members:
            member.join(self.members, networks)

    def leads(self, member: Server) -> bool:
        assert isinstance(member, ZooKeeper)
        try:
            return member.mode() == "leader"
        except (OSError, NotReady):
            return False

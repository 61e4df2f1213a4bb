"""MongoDB: standalone, or a replica set of one or three members."""

import struct
from collections.abc import Mapping
from typing import Any

from .base import NotReady, Server
from .ensemble import Ensemble
from .wire import HOST, Wire

REPLICA_SET = "r1"
OP_MSG = 2013


def ask(port: int, document: dict[str, Any], timeout: float = 10.0) -> bytes:
    """Run one command, `$db` included, and return the raw reply; a reply that isn't `ok` is NotReady."""
    body = struct.pack("<ib", 0, 0) + _bson(document)
    with Wire(port, timeout) as wire:
        wire.send(struct.pack("<iiii", 16 + len(body), 1, 0, OP_MSG) + body)
        reply = wire.read(struct.unpack("<i", wire.read(4))[0] - 4)
    if b"\x01ok\0" + struct.pack("<d", 1) not in reply:
        raise NotReady(repr(reply))
    return reply


def _bson(document: dict[str, Any]) -> bytes:
    """The few types that the commands here need."""
    parts = b""
    for name, value in document.items():
        key = name.encode() + b"\0"
        match value:
            case bool():
                parts += b"\x08" + key + bytes([value])
            case int():
                parts += b"\x10" + key + struct.pack("<i", value)
            case str():
                text = value.encode() + b"\0"
                parts += b"\x02" + key + struct.pack("<i", len(text)) + text
            case dict():
                parts += b"\x03" + key + _bson(value)
            case list():
                parts += b"\x04" + key + _bson({str(i): item for i, item in enumerate(value)})
            case _:
                raise TypeError(f"{name}: {value!r}")
    return struct.pack("<i", len(parts) + 5) + parts + b"\0"


class MongoDB(Server):
    """A standalone server, or (`replica_set`) one that waits to be made a member."""

    kind = "mongodb"

    def __init__(self, *, replica_set: str = "", env: Mapping[str, str] | None = None) -> None:
        super().__init__(env=env)
        self.replica_set = replica_set

    @property
    def url(self) -> str:
        return f"mongodb://{self.address}/leasehold"

    def command(self) -> list[str]:
        where = ["--dbpath", str(self.data), "--port", str(self.port), "--bind_ip", HOST, "--nounixsocket"]
        member = ["--replSet", self.replica_set] if self.replica_set else []
        return [self.program, *where, "--wiredTigerCacheSizeGB", "0.25", *member]

    def ping(self, timeout: float) -> None:
        ask(self.port, {"ping": 1, "$db": "admin"}, timeout)


class MongoReplicaSet(Ensemble):
    """A replica set that elects a new primary about two seconds after it lost one."""

    def __init__(self, members: int = 3) -> None:
        self.members = [MongoDB(replica_set=REPLICA_SET) for _ in range(members)]

    @property
    def url(self) -> str:
        return f"mongodb://{','.join(m.address for m in self.members)}/leasehold?replicaSet={REPLICA_SET}"

    def form(self) -> None:
        config = {
            "_id": REPLICA_SET,
            "members": [{"_id": i, "host": member.address} for i, member in enumerate(self.members)],
            "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500},
        }
        ask(self.members[0].port, {"replSetInitiate": config, "$db": "admin"}, timeout=60)

    def leads(self, member: Server) -> bool:
        try:
            return b"\x08isWritablePrimary\0\x01" in ask(member.port, {"hello": 1, "$db": "admin"}, 1.0)
        except (OSError, EOFError, NotReady):
            return False

"""etcd: a single server or a cluster of three."""

import base64
import http.client
import json
from typing import Any

from .base import NotReady, Server
from .ensemble import Ensemble
from .wire import HOST


def ask(port: int, path: str, body: dict[str, Any], timeout: float = 1.0) -> dict[str, Any]:
    """A call of the v3 API through its JSON gateway, such as `kv/range`."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("POST", f"/v3/{path}", json.dumps(body))
        response = connection.getresponse()
        text = response.read().decode()
    except http.client.HTTPException as error:
        raise NotReady(repr(error)) from error
    finally:
        connection.close()
    if response.status != 200:
        raise NotReady(text)
    answer: dict[str, Any] = json.loads(text)
    return answer


def b64(text: str) -> str:
    """Keys and values travel like this."""
    return base64.b64encode(text.encode()).decode()


class Etcd(Server):
    kind = "etcd"

    def __init__(self) -> None:
        super().__init__()
        self.peer_port = self.extra_port()
        self.together: list[Etcd] = [self]

    def command(self) -> list[str]:
        members = ",".join(f"{member.port}=http://{HOST}:{member.peer_port}" for member in self.together)
        client, peer = f"http://{self.address}", f"http://{HOST}:{self.peer_port}"
        options = {
            "name": self.port,
            "data-dir": self.data,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": members,
            "initial-cluster-token": self.together[0].port,
            "heartbeat-interval": 50,  # ms; half of what is usual, for an election in less than a second
            "election-timeout": 500,
        }
        # Its durability against power cuts is not what is tested, and it costs 10 ms for each write.
        return [self.program, "--unsafe-no-fsync", *(f"--{name}={value}" for name, value in options.items())]

    def ping(self, timeout: float) -> None:
        ask(self.port, "kv/range", {"key": b64("ping")}, timeout)


class EtcdCluster(Ensemble):
    members: list[Etcd]

    def __init__(self, members: int = 3) -> None:
        self.members = [Etcd() for _ in range(members)]
        for member in self.members:
            member.together = self.members

    def leads(self, member: Server) -> bool:
        try:
            status = ask(member.port, "maintenance/status", {})
        except (OSError, NotReady):
            return False
        return bool(status.get("leader") == status["header"]["member_id"])  # none during an election

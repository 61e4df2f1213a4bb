"""etcd: a single server or a cluster of three."""

import base64
import http.client
import json
from typing import Any

from .base import NotReady, Server
from .ensemble import Ensemble
from .netns import Member, Networks
from .wire import HOST


def ask(port: int, path: str, body: dict[str, Any], timeout: float = 20.0, host: str = HOST) -> dict[str, Any]:
    """A call of the v3 API through its JSON gateway, such as `kv/range`."""
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
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


class Etcd(Member):
    kind = "etcd"

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = {name.replace("_", "-"): value for name, value in options.items()}
        self.peer_port = self.extra_port()
        self.together = [self]

    @property
    def peer_url(self) -> str:
        return f"http://{self.peer_host}:{self.peer_port}"

    def command(self) -> list[str]:
        members = ",".join(f"{member.port}={member.peer_url}" for member in self.together)
        client, peer = f"http://{self.address}", self.peer_url
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
            **self.options,
        }
        # Its durability against power cuts is not what is tested, and it costs 10 ms for each write.
        return [self.program, "--unsafe-no-fsync", *(f"--{name}={value}" for name, value in options.items())]

    def ping(self, timeout: float) -> None:
        ask(self.port, "kv/range", {"key": b64("ping")}, timeout, self.host)


class EtcdCluster(Ensemble):
    members: list[Etcd]

    def __init__(self, members: int = 3, networks: Networks | None = None) -> None:
        self.members = [Etcd() for _ in range(members)]
        for member in self.members:
            member.join(self.members, networks)

    def leads(self, member: Server) -> bool:
        assert isinstance(member, Etcd)
        try:
            status = ask(member.port, "maintenance/status", {}, 1.0, member.host)
        except (OSError, NotReady):
            return False
        return bool(status.get("leader") == status["header"]["member_id"])  # none during an election

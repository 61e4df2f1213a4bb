"""Several Redis servers: a master with replicas under Sentinels, and a cluster of three masters."""

from collections.abc import Sequence

from .base import NotReady, Server
from .ensemble import Ensemble
from .process import wait_until
from .redis import Redis, Reply, ask
from .wire import HOST

SLOTS = 16384
MASTER = "mymaster"


class Sentinel(Redis):
    """One Sentinel, which finds the others and the replicas by itself."""

    def __init__(self, master: Redis, quorum: int, down_after: float) -> None:
        super().__init__()
        self.master = master
        self.quorum = quorum
        self.down_after = down_after

    def prepare(self) -> None:
        # Sentinel keeps what it learns in this file, so that it can't be given as options.
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.data}",
            f"sentinel monitor {MASTER} {HOST} {self.master.port} {self.quorum}",
            f"sentinel down-after-milliseconds {MASTER} {self.down_after * 1000:.0f}",
            f"sentinel failover-timeout {MASTER} 3000",
        ]
        (self.data / "sentinel.conf").write_text("\n".join(lines) + "\n")

    def command(self) -> list[str]:
        return [self.program, str(self.data / "sentinel.conf"), "--sentinel"]

    def state(self) -> dict[bytes, Reply]:
        """What it knows of the master: `SENTINEL MASTER`."""
        reply = ask(self.port, "SENTINEL", "MASTER", MASTER)
        assert isinstance(reply, list)
        names = [name for name in reply[::2] if isinstance(name, bytes)]
        return dict(zip(names, reply[1::2], strict=True))


class SentinelSetup(Ensemble):
    """A master, its replicas and three Sentinels. `members` are the data servers, one of which leads.

    Another takes its place when it has been silent for `down_after` seconds, be it for want of a processor."""

    members: list[Redis]

    def __init__(self, replicas: int = 2, sentinels: int = 3, down_after: float = 0.5) -> None:
        master = Redis()
        # The delay before a replica is sent the data is meant for many that come one after the other.
        master.options += ["--repl-diskless-sync-delay", "0"]
        self.members = [master]
        self.members += [Redis("--replicaof", HOST, str(master.port)) for _ in range(replicas)]
        self.sentinels = [Sentinel(master, sentinels // 2 + 1, down_after) for _ in range(sentinels)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(s.address for s in self.sentinels)}/{MASTER}/0"

    def form(self) -> None:
        replicas, others = b"%d" % (len(self.members) - 1), b"%d" % (len(self.sentinels) - 1)

        def following() -> bool:
            role = ask(self.members[0].port, "ROLE")  # master, offset, list of replicas
            return isinstance(role, list) and isinstance(role[2], list) and b"%d" % len(role[2]) == replicas

        def acquainted(sentinel: Sentinel) -> bool:
            state = sentinel.state()
            return (state[b"num-slaves"], state[b"num-other-sentinels"]) == (replicas, others)

        wait_until(following, "the replicas to follow the master")
        for sentinel in self.sentinels:
            sentinel.start()
        wait_until(lambda: all(map(acquainted, self.sentinels)), "the Sentinels to know all servers")

    def leads(self, member: Server) -> bool:
        """What all Sentinels and the server itself say: an old master that is back may not know it yet."""
        try:
            role = ask(member.port, "ROLE", timeout=1.0)
            agreed = all(sentinel.state()[b"port"] == b"%d" % member.port for sentinel in self.sentinels)
        except (OSError, EOFError, NotReady):
            return False
        return agreed and isinstance(role, list) and role[0] == b"master"

    def stop(self) -> None:
        for sentinel in self.sentinels:
            sentinel.stop()
        super().stop()

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.close()
        super().close()


class ClusterNode(Redis):
    def command(self) -> list[str]:
        # Its own choice for the second port (the first + 10000) might be one of the kernel's.
        return [*super().command(), "--cluster-enabled", "yes", "--cluster-port", str(self.bus_port),
                "--cluster-node-timeout", f"{self.silence * 1000:.0f}"]  # fmt: skip

    def __init__(self, silence: float) -> None:
        super().__init__("--repl-diskless-sync-delay", "0", append_only=True)
        self.bus_port = self.extra_port()
        self.silence = silence


class RedisCluster(Ensemble):
    """Three masters, a third of the slots each, no replicas: with one of them away its slots are too.

    And so is all else, when it has been silent for `silence` seconds, be it for want of a processor.
    Or so many `masters`, of which the `followed` have a replica each; these are the last of the members."""

    members: list[ClusterNode]

    def __init__(self, silence: float = 20.0, masters: int = 3, followed: Sequence[int] = ()) -> None:
        self.masters = [ClusterNode(silence) for _ in range(masters)]
        self.followed = {number: ClusterNode(silence) for number in followed}
        self.members = [*self.masters, *self.followed.values()]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(m.address for m in self.members)}"

    def form(self) -> None:
        share = SLOTS // len(self.masters) + 1
        for number, node in enumerate(self.members):
            if node in self.masters:
                slots = range(number * share, min(SLOTS, (number + 1) * share))
                ask(node.port, "CLUSTER", "ADDSLOTS", *slots)
            # Nodes with the same epoch would first have to settle who changes his.
            ask(node.port, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                ask(self.members[0].port, "CLUSTER", "MEET", HOST, node.port, node.bus_port)
        if self.followed:
            wait_until(lambda: all(map(self._complete, self.members)), "the nodes to know each other")
        for number, replica in self.followed.items():
            ask(replica.port, "CLUSTER", "REPLICATE", text(ask(self.masters[number].port, "CLUSTER", "MYID")))

    def settle(self) -> None:
        wait_until(lambda: all(map(self._complete, self.members)), "the cluster to serve all slots")
        for number, replica in self.followed.items():
            master = self.masters[number]
            wait_until(lambda m=master, r=replica: follows(r, m), "a replica to follow")  # type: ignore[misc]
        wait_until(lambda: all(map(self._knows_replicas, self.members)), "all nodes to know the replicas")

    def leads(self, member: Server) -> bool:
        raise NotImplementedError("a cluster of masters has no leader")

    def _knows_replicas(self, member: Server) -> bool:
        """A master that does not know its replica as such would not let it take over."""
        return text(ask(member.port, "CLUSTER", "NODES")).count("slave") == len(self.followed)

    def _complete(self, member: Server) -> bool:
        state = ask(member.port, "CLUSTER", "INFO")
        assert isinstance(state, bytes)
        return b"cluster_state:ok" in state and b"cluster_known_nodes:%d" % len(self.members) in state


def text(reply: Reply) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()


def follows(replica: Redis, master: Redis) -> bool:
    """Whether both say so, and what is written is passed on."""
    theirs, its = (text(ask(node.port, "INFO", "replication")) for node in (replica, master))
    return f"master_port:{master.port}" in theirs and "master_link_status:up" in theirs and "state=online" in its

"""ZooKeeper's store logic in simulated worlds, on the model server. ``SEEDS``, ``FIRST`` and ``SEED`` as elsewhere."""

from __future__ import annotations

import gc
import os

import pytest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, RolledBackError
from kazoo.protocol.states import EventType

from .zookeeper_server import ModelServer, ModelSession, Operation
from .zookeeper_world import simulate_zookeeper

GROUP = 5
FIRST = int(os.environ.get("SEED", os.environ.get("FIRST", "0")))
LAST = FIRST + (1 if "SEED" in os.environ else int(os.environ.get("SEEDS", "20")))


@pytest.mark.parametrize("first", range(FIRST, LAST, GROUP))
def test_no_world_of_zookeeper_breaks_the_promises(first: int) -> None:
    """Exclusion, order of tokens, no theft, no leak, liveness: connections break, sessions end, the server is away."""
    for seed in range(first, min(first + GROUP, LAST)):
        result = simulate_zookeeper(seed)
        assert not result.violations, f"{result.story()}\nor: python -m simulation.zookeeper_world {seed}"
        assert result.grants > 10, f"seed {seed} shows little: {result.grants} grants"
    gc.collect()


def test_a_session_that_is_too_short_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge by itself: leases that rest on sessions of half their ttl."""
    proper = ModelServer.open

    def shorter(server: ModelServer, timeout: float) -> ModelSession:
        session = proper(server, timeout)
        session.timeout /= 4  # what its client is told stays
        return session

    monkeypatch.setattr(ModelServer, "open", shorter)
    rules = {each.rule for seed in range(1, 12) for each in simulate_zookeeper(seed).violations}
    assert rules & {"overlap", "not in the store"}


# The model server.


@pytest.fixture
def server() -> ModelServer:
    return ModelServer(lambda: 1000)


def do(server: ModelServer, session: ModelSession, what: str, path: str = "", **more: object) -> object:
    answer = server.perform(session, Operation(what, path, **more))  # type: ignore[arg-type]
    if isinstance(answer, Exception):
        raise answer
    return answer


def test_model_numbers_sequential_nodes_by_what_was_created(server: ModelServer) -> None:
    session = server.open(10)
    do(server, session, "create", "/a")
    first = do(server, session, "create", "/a/x", sequence=True)
    do(server, session, "delete", "/a/x0000000000")
    second = do(server, session, "create", "/a/x", sequence=True)
    assert [first[0], second[0]] == ["/a/x0000000000", "/a/x0000000001"]  # type: ignore[index]


def test_model_checks_versions_and_children(server: ModelServer) -> None:
    session = server.open(10)
    do(server, session, "create", "/a")
    do(server, session, "set", "/a", data=b"x", version=0)
    with pytest.raises(BadVersionError):
        do(server, session, "set", "/a", data=b"y", version=0)
    do(server, session, "create", "/a/b")
    with pytest.raises(NotEmptyError):
        do(server, session, "delete", "/a")
    with pytest.raises(NodeExistsError):
        do(server, session, "create", "/a")


def test_model_does_a_transaction_whole_or_not_at_all(server: ModelServer) -> None:
    session = server.open(10)
    do(server, session, "create", "/a")
    parts = (Operation("delete", "/a"), Operation("create", "/a"), Operation("check", "/b"))
    answers = do(server, session, "multi", parts=parts)
    assert [type(each) for each in answers] == [RolledBackError, RolledBackError, NoNodeError]  # type: ignore[attr-defined]
    assert server.tree["/a"].created == 1


def test_model_ends_a_session_with_its_nodes_and_tells_who_watches(server: ModelServer) -> None:
    one, other = server.open(10), server.open(10)
    told: list[tuple[str, str]] = []
    other.tell = lambda kind, path: told.append((kind, path))
    do(server, one, "create", "/a", ephemeral=True)
    do(server, other, "get", "/a", watch=True)
    server.end(one)
    assert "/a" not in server.tree
    assert told == [(EventType.DELETED, "/a")]
    do(server, other, "create", "/a")
    assert len(told) == 1, "a watch is told of one change"

"""How docs/performance.md is made of results: which figure counts, what is said of a goal, and what is left to run."""

from __future__ import annotations

import json
import socket
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DELAY = 0.05
"""Of a relay, in each direction."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)


def bench(module: str) -> Any:
    return import_module(f"bench.{module}")


def result(store: str, rows: dict[str, dict[str, float]], **more: object) -> dict[str, Any]:
    """What a run leaves behind, with the same figure in each of three rounds."""
    found = [
        {
            **{"what": what, "unit": "", "values": values, "best": "low", "note": ""},
            "rounds": {peer: [value] * 3 for peer, value in values.items()},
        }
        for what, values in rows.items()
    ]
    said = {"store": store, "title": store.title(), "about": "", "peers": ["leasehold", "redis-py"], "rows": found}
    return {**said, "at": time.time(), "command": f"python -m bench.run --store {store}", **more}


def test_the_newest_figure_of_a_line_counts_and_runs_that_have_none_are_not_named() -> None:
    old = result("redis", {"pair": {"leasehold": 3.0}}, file="old")
    other = result("redis", {"pair": {"leasehold": 2.0}, "idle": {"leasehold": 1.0}}, file="other")
    new = result("redis", {"pair": {"leasehold": 1.0}}, file="new")
    store = bench("page").merge([old, other, new])
    assert {row.what: row.values["leasehold"] for row in store.rows} == {"pair": 1.0, "idle": 1.0}
    assert [run["file"] for run in store.runs] == ["other", "new"]
    assert store.peers == ["leasehold"]  # the other one has no figure


@pytest.mark.parametrize("seen", [0.7, 0.9])
def test_a_goal_that_is_missed_is_said_with_its_reason(
    seen: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, goals = bench("page"), bench("goals")
    monkeypatch.setattr(page, "WHY", tmp_path / "why.toml")
    page.WHY.write_text('[redis]\n"acquire + release, threads, p50: at most 0.8" = "it is slow"\n')
    store = page.merge([result("redis", {goals.PAIR: {"leasehold": seen, "redis-py": 1.0}})])
    if seen == 0.7:
        assert page.missed([store]) == ""
        return
    line = f"- Redis, {goals.PAIR}: at most 0.8 × redis-py (0.90 ×): "
    assert page.missed([store]) == f"Missed, and why:\n\n{line}it is slow."
    page.WHY.write_text("")
    assert page.missed([store]) == f"Missed, and why:\n\n{line}not known yet."
    assert goals.PAIR in capsys.readouterr().err


def test_each_reason_for_a_missed_goal_belongs_to_a_goal() -> None:
    for store, reasons in tomllib.loads(bench("page").WHY.read_text()).items():
        words = [goal.words() for goal in bench("goals").OF[store]]
        for key in reasons:
            assert any(each.startswith(key) for each in words), key


def test_a_goal_is_not_judged_by_fewer_than_three_rounds() -> None:
    goals, figures = bench("goals"), bench("figures")
    goal = goals.Goal("idle", 1.0)
    for rounds, met in ((2, None), (3, True)):
        row = figures.Row("idle", "/s", {"leasehold": 0.5}, rounds={"leasehold": [0.5] * rounds})
        assert goal.judge([row])[2] is met


def test_each_step_of_the_plan_can_be_run(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, run = bench("all").STEPS, bench("run")
    assert len({step.command() for step in steps}) == len(steps)
    for step in steps:
        monkeypatch.setattr("sys.argv", ["bench.run", *step.arguments()])
        chosen = run.options()
        text = (ROOT / "bench" / "stores" / f"{chosen.store}.py").read_text()
        assert all(peer in text or chosen.store == "mysql" for peer in chosen.peer)


def test_a_step_that_was_cut_short_or_is_long_ago_is_to_be_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    everything = bench("all")
    monkeypatch.setattr(everything, "PUBLISHED", tmp_path)
    command = everything.Step("redis", "pair,handoff").command()
    for seconds, at, done in (
        ({"pair": 1.0, "handoff": 2.0}, 0, True),
        ({"pair": 1.0}, 0, False),
        ({"pair": 1.0, "handoff": 2.0}, 7200, False),
    ):
        found = result("redis", {}, command=command, seconds=seconds, at=time.time() - at)
        (tmp_path / "redis.json").write_text(json.dumps(found))
        assert (command in everything.done(hours=1)) is done
    assert bench("run").command(["--store", "redis", "--into", "somewhere"]) == "python -m bench.run --store redis"


@pytest.mark.parametrize("place", ["its store's table", "that of the network"])
def test_lines_of_runs_with_a_network_in_between_have_a_table_of_their_own(place: str) -> None:
    page, network, goals = bench("page"), bench("network"), bench("goals")
    near = result("redis", {goals.PAIR: {"leasehold": 1.0, "redis-py": 3.0}})
    away = {"leasehold": 5.0, goals.MESSAGES: 4.0}
    far = result("redis", {goals.PAIR + goals.away(0.001): away}, peers=list(away))
    for run in (near, far):
        run.update(date="", commit="", rounds=3, load="", load_after="", machine="")
        run["rows"][0]["unit"] = "ms"
    store = page.merge([near, far])
    if place == "that of the network":
        lines = network.table([store]).splitlines()[2:]
        ours, messages = "| Redis | leasehold | **2.50 (5 ms)** |", "|  | bare messages | 2.00 (4 ms) |"
        assert lines == [each + "  |" * 5 for each in (ours, messages)]
    else:
        assert goals.MESSAGES not in page.section(store).partition("Ratios")[0]
        assert network.table([page.merge([near])]) == ""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client and its server, with a relay in between that has a delay."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        with bench("relay").Relay(listening.getsockname()[1], "tcp://", DELAY) as relay:
            with socket.create_connection(("127.0.0.1", relay.port), 10) as client, listening.accept()[0] as server:
                server.settimeout(10)
                yield client, server


def test_a_relay_with_a_delay_holds_back_each_way(ends: tuple[socket.socket, socket.socket]) -> None:
    client, server = ends
    for source, target in ((client, server), (server, client)):
        began = time.monotonic()
        source.sendall(b"x")
        assert target.recv(1) == b"x"
        assert time.monotonic() - began >= DELAY
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""


def test_a_relay_with_a_delay_holds_back_no_longer_what_comes_after_more(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    client, server = ends
    pieces = 40
    began = time.monotonic()
    for number in range(pieces):
        client.sendall(bytes([number]))
        time.sleep(0.001)  # so that they are pieces
    got = b""
    while len(got) < pieces:
        got += server.recv(100)
    assert got == bytes(range(pieces))
    assert time.monotonic() - began < pieces * DELAY / 2


def test_bare_messages_take_two_round_trips_for_a_pair_and_hand_a_name_on() -> None:
    with bench("network").away({}, DELAY) as peers:
        [(module, target)] = peers.values()
        one, other = (bench(f"peers.{module}").Peer(target) for _ in range(2))
        began = time.monotonic()
        one.release(one.acquire("name"))
        assert time.monotonic() - began >= 2 * DELAY
        one.acquire("name")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.acquire, "name")
            time.sleep(4 * DELAY)
            assert not waiting.done()
            began = time.monotonic()
            one.release("name")
            assert waiting.result(10) == "name"
            assert time.monotonic() - began >= DELAY
        one.close()
        other.close()


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, UNARY, WATCH = b"\0\0\2\1\4\0\0\0\1ab", 1, 3
TWO, EMPTY = b"\0\0\0\0\3abc\0\0\0\1\4" + b"\0" * 260, b"\0\0\0\0\0"
"""Messages of gRPC: a short and a longer one, and one without anything in it."""


def data(stream: int, *pieces: bytes, last: bool = False) -> list[bytes]:
    """Frames of HTTP/2 with these pieces of what is sent on a stream."""
    ends = [last and piece is pieces[-1] for piece in pieces]
    return [
        len(piece).to_bytes(3) + bytes((0, end)) + stream.to_bytes(4) + piece
        for piece, end in zip(pieces, ends, strict=True)
    ]


def interleaved() -> bytes:
    """Two messages of a watch's stream in five frames, with calls in between. HTTP/2 uses the number of a stream once;
    that the calls have the same shows that nothing is kept of one that was cut off."""
    first, second, third, fourth, fifth = data(WATCH, TWO[:3], TWO[3:7], TWO[7:10], TWO[10:100], TWO[100:])
    [call] = data(UNARY, TWO, last=True)
    [cut] = data(UNARY, TWO[:20], last=True)
    return first + call + second + HEADERS + third + cut + fourth + call + fifth


@pytest.mark.parametrize(
    ("scheme", "sent", "count"),
    [
        ("redis", b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n" * 3, 3),
        ("zookeeper", b"\0\0\0\4abcd\0\0\0\1x", 2),
        ("mongodb", b"\6\0\0\0ab\4\0\0\0\5\0\0\0x", 3),
        ("etcd", PREFACE + HEADERS + b"".join(data(UNARY, EMPTY, b"", EMPTY)) + HEADERS, 2),
        ("etcd", PREFACE + HEADERS + b"".join(data(WATCH, TWO + EMPTY + TWO)), 5),
        ("etcd", PREFACE + interleaved(), 8),
        ("postgresql", b"Q1 and Q2", 1),
    ],
)
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_messages_are_counted_in_whatever_pieces_they_come(scheme: str, sent: bytes, count: int, piece: int) -> None:
    if scheme == "redis":  # its commands are short, and sent whole
        piece = 1000
    counter = bench("relay").counter(scheme)
    assert sum(counter.sent(sent[at : at + piece]) for at in range(0, len(sent), piece)) == count


def test_statement_counter_tells_statements_apart_by_their_answers() -> None:
    counter = bench("relay").counter("mysql")
    found = [counter.sent(b"half"), counter.sent(b"the rest")]
    counter.answered()
    assert [*found, counter.sent(b"another")] == [1, 0, 1]

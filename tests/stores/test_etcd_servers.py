"""How etcd is reached: members that fail, users and roles, TLS, channels of grpcio, URLs; what doctor says of it."""

from __future__ import annotations

import asyncio
import gc
import ssl
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from etcd_tools import LIMIT, A, Process, Waiter, keys, renewal

import leasehold
from leasehold import StoreNotReady, StoreUnavailable, aio
from leasehold.core import timing
from leasehold.core.protocol import Busy
from leasehold.stores.common.findings import Finding
from leasehold.stores.etcd import wire
from leasehold.stores.etcd.doctor import doctor
from leasehold.stores.etcd.endpoints import Endpoints
from leasehold.stores.etcd.store import EtcdStore
from leasehold.stores.etcd.subscriptions import TAKING, Interest
from leasehold.stores.etcd.tasks import EtcdTasks, TaskConnection, TaskTransport
from leasehold.stores.etcd.threads import ThreadTransport
from leasehold.stores.etcd.url import parse
from leasehold.tasks.runner import TaskRegistry
from leasehold.testing.handles import eventually
from servers.etcd import Etcd, EtcdCluster, ask, b64
from servers.proxy import Proxy
from servers.tls import certificate


@pytest.fixture
def server(etcd_server: Etcd) -> Etcd:
    return etcd_server


def test_what_is_in_a_full_pipe_arrives_whole(server: Etcd, namespace: str) -> None:
    """Requests that are larger than HTTP/2's windows: renewal of many long names."""
    process = Process(server.url, namespace)
    names = ["🔒" * 500 + f"{number:03}" for number in range(150)]
    with process.locks as locks:
        grants = {name: process.granted(name, A) for name in names}
        assert set(process.renew(*(renewal(name, A, grant, 30) for name, grant in grants.items()))) == {"renewed"}
        assert len(list(locks.leases())) == 150
        for name, grant in grants.items():
            assert process.release(name, A, grant)


# Members.


def test_a_member_that_is_down_is_passed_over(server: Etcd, namespace: str) -> None:
    with Proxy(server.port) as proxy:
        proxy.reset()
        url = f"etcd://127.0.0.1:1,127.0.0.1:{proxy.port},127.0.0.1:{server.port}"
        with leasehold.connect(url, namespace=namespace) as locks:
            lease = locks.lock("x").acquire(30)
            assert lease.release()


async def test_a_member_that_hangs_is_passed_over(server: Etcd, namespace: str) -> None:
    """Renewals are in time: the member that hangs is given up before the deadline."""
    with Proxy(server.port) as proxy:
        url = f"etcd://127.0.0.1:{proxy.port},127.0.0.1:{server.port}"
        async with aio.connect(url, namespace=namespace, ttl=20, renew_every=1) as locks:
            lease = await locks.lock("x").acquire(30)
            proxy.blackhole()
            for _ in range(3):
                until = time.monotonic() + lease.remaining
                while time.monotonic() + lease.remaining < until + 0.5:  # until it is renewed
                    assert lease.valid, lease.lost_reason
                    await asyncio.sleep(0.01)
            assert await lease.release()
        proxy.all_well()


@pytest.mark.slow
def test_without_a_quorum(start_server: Any) -> None:
    """Errors, not hangs; the loss is told by the deadline; and it goes on once the majority is back."""
    cluster: EtcdCluster = start_server(EtcdCluster)
    with leasehold.connect(cluster.url, ttl=6) as locks:
        lease = locks.lock("x").acquire(30)
        for member in cluster.members[1:]:
            member.kill()
        assert lease.lost.wait(30)
        assert not lease.valid
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            locks.lock("y").acquire(2)
        assert time.monotonic() - began < 20, "it hangs"
        assert any(finding.level == "error" for finding in doctor(cluster.url))
        for member in cluster.members[1:]:
            member.launch()
        taken = locks.lock("x").acquire(60)
        assert taken.token > lease.token
        assert taken.release()


# Users and TLS.


@pytest.fixture
def guarded(start_server: Any) -> Etcd:
    """With a root, and the user of the documentation, for the namespace billing."""
    server: Etcd = start_server(Etcd)

    def say(path: str, **body: Any) -> None:
        ask(server.port, f"auth/{path}", body)

    say("role/add", name="root")
    for user in ("root", "leasehold"):
        say("user/add", name=user, password="secret")
    say("user/grant", user="root", role="root")
    say("role/add", name="leasehold")
    start = "leasehold/billing/"
    rights = {"permType": "READWRITE", "key": b64(start), "range_end": b64("leasehold/billing0")}
    say("role/grant", name="leasehold", perm=rights)
    say("user/grant", user="leasehold", role="leasehold")
    say("enable")
    return server


def test_a_user_with_the_least_rights(guarded: Etcd) -> None:
    url = f"etcd://leasehold:secret@{guarded.address}"
    with leasehold.connect(url, namespace="billing") as locks, leasehold.connect(url, namespace="billing") as other:
        lease = locks.lock("x", data=1).acquire(30)
        waiter = Waiter(other, "x")
        eventually(lambda: locks.inspect("x").waiters == 1)  # type: ignore[union-attr]
        assert [each.name for each in locks.leases()] == ["x"]
        lease.renew()
        assert lease.release()
        held = waiter.lease()
        assert locks.break_lease("x")
        assert held.lost.wait(20)
        held.release()
        assert locks.lock("x", renew=False).acquire(30).release()
        assert locks.lock("x", min_hold=0.1).acquire(30).release()


def test_a_token_that_the_server_has_forgotten_is_asked_for_anew(guarded: Etcd) -> None:
    process = Process(f"etcd://leasehold:secret@{guarded.address}", "billing")
    with process.locks as locks:
        lease = locks.lock("x").acquire(30)
        assert process.endpoints.token
        process.endpoints.token = b"forgotten.1"
        lease.renew()
        assert lease.release()


def administer(server: Etcd, method: str, *fields: str) -> None:
    """As root, who alone may: a call of etcd's Auth service, with text in its first fields."""
    transport = ThreadTransport(Endpoints(parse(f"etcd://root:secret@{server.address}")))
    body = b"".join(wire.text(number, each.encode()) for number, each in enumerate(fields, 1))
    transport.send(wire.EtcdCall(f"/etcdserverpb.Auth/{method}".encode(), (body,)), LIMIT)
    transport.close()


def test_a_listener_whose_token_is_taken_away_listens_anew(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Watches are refused on its stream from then on, and nothing else tells."""
    monkeypatch.setattr(timing, "FALLBACK", 1000.0)  # by push alone
    url = f"etcd://leasehold:secret@{guarded.address}"
    other = Process(url, "billing")
    with leasehold.connect(url, namespace="billing") as locks, other.locks:
        lease = locks.lock("x").acquire(30)
        kept = other.locks.lock("kept").acquire(30)
        other.until_listening()
        streams = len(other.transport.streams)
        administer(guarded, "UserChangePassword", "leasehold", "secret")
        waiter = Waiter(other.locks, "x")
        eventually(lambda: locks.inspect("x").waiters == 1)  # type: ignore[union-attr]
        eventually(lambda: len(other.transport.streams) > streams and other.listens(), 60, "it listens anew")
        time.sleep(0.5)
        assert lease.release()
        assert waiter.lease().release()
        assert kept.valid


def test_a_listener_that_is_refused_leaves_the_token_that_another_has_got_since(guarded: Etcd) -> None:
    """Else who has just logged in would ask without any, and be told that the server wants a user."""
    process = Process(f"etcd://leasehold:secret@{guarded.address}", "billing")
    with process.locks as locks:
        assert locks.inspect("x") is None
        process.until_listening()
        [stream] = process.transport.streams
        administer(guarded, "UserChangePassword", "leasehold", "secret")
        assert locks.inspect("x") is None
        token = process.endpoints.token
        assert token != stream.token
        start, end = process.store.session.holders_of("x")
        process.driver.listen(A, Busy(None, 0, None, (Interest(TAKING, "x", start, end, 1),)))
        eventually(lambda: len(process.transport.streams) > 1 and process.listens(), what="it listens anew")
        assert process.endpoints.token == token


async def test_watches_that_are_refused_are_not_asked_for_in_a_hot_loop(guarded: Etcd) -> None:
    """A role that may not read the words to holders: it polls, and says so."""
    administer(guarded, "RoleAdd", "poor")
    administer(guarded, "UserAdd", "poor", "secret")
    administer(guarded, "UserGrantRole", "poor", "poor")
    start, words, end = "leasehold/billing/", "leasehold/billing/s", "leasehold/billing0"
    for kind, first, last in ((1, start, end), (0, start, words + "/"), (0, words + "0", end)):
        rights = wire.number(1, kind) + wire.text(2, first.encode()) + wire.text(3, last.encode())
        administer(guarded, "RoleGrantPermission", "poor", rights.decode())
    tries = 0

    class Counting(TaskTransport):
        async def watch(self, limit: float) -> Any:
            nonlocal tries
            tries += 1
            return await super().watch(limit)

    store = EtcdStore("billing")
    transport = Counting(Endpoints(parse(f"etcd://poor:secret@{guarded.address}")))
    driver = EtcdTasks(store, transport, "etcd", None)  # type: ignore[arg-type]
    registry = TaskRegistry(store, driver, namespace="billing", owner=None, kinds=None, defaults={})
    async with aio.Locks(registry) as locks:
        lease = await locks.lock("x").acquire(30)
        waiting = asyncio.ensure_future(locks.lock("x").acquire(60))
        began = time.monotonic()
        while time.monotonic() < began + 3 or tries < 2:
            assert time.monotonic() < began + 30, "it does not try again"
            assert not await driver.listen("", None), "it seems to listen"
            await asyncio.sleep(0.01)
        assert tries < 3 * (time.monotonic() - began) + 1
        assert await lease.release()
        assert await (await waiting).release()


async def test_users_in_asyncio(guarded: Etcd) -> None:
    async with aio.connect(f"etcd://leasehold:secret@{guarded.address}", namespace="billing") as locks:
        lease = await locks.lock("x").acquire(30)
        waiting = asyncio.ensure_future(locks.lock("x").acquire(30))
        await asyncio.sleep(0.3)
        assert await lease.release()
        assert await (await waiting).release()


@pytest.mark.parametrize(
    ("login", "namespace", "said"),
    [
        ("leasehold:wrong@", "billing", "authentication failed"),
        ("nobody:secret@", "billing", "authentication failed"),
        ("", "billing", "requires a user"),
        ("leasehold:secret@", "payroll", "role lacks a permission"),
    ],
)
def test_wrong_credentials(guarded: Etcd, login: str, namespace: str, said: str) -> None:
    began = time.monotonic()
    with leasehold.connect(f"etcd://{login}{guarded.address}", namespace=namespace) as locks:
        with pytest.raises(StoreNotReady, match=said) as caught:
            locks.lock("x").acquire()
        assert "secret" not in str(caught.value)
        assert "wrong" not in str(caught.value)
    assert time.monotonic() - began < 20, "it was not told at once"
    assert any(finding.level == "error" for finding in doctor(f"etcd://{login}{guarded.address}", namespace))


class Encrypted(Etcd):
    def __init__(self, cert: Path, key: Path) -> None:
        super().__init__(cert_file=cert, key_file=key, trusted_ca_file=cert, client_cert_auth="true")
        self.context = ssl.create_default_context(cafile=str(cert))
        for option in ("listen-client-urls", "advertise-client-urls"):
            self.options[option] = f"https://{self.address}"

    def ping(self, timeout: float) -> None:
        import socket

        with socket.create_connection(("127.0.0.1", self.port), timeout):
            pass


def test_tls_with_a_certificate_of_our_own(start_server: Any, tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = start_server(Encrypted, cert, key)
    good = f"{server.url}?ca={cert}&cert={cert}&key={key}"
    with leasehold.connect(good) as locks:
        lease = locks.lock("x").acquire(20)
        waiter = Waiter(locks, "x")
        time.sleep(0.3)
        assert lease.release()
        assert waiter.lease().release()
    asyncio.run(_one_in_asyncio(good))
    [finding] = filter(about_users, doctor(good))
    assert finding.level == "ok", "it has no users, and asks for certificates instead"
    assert "has a certificate" in finding.message
    with leasehold.connect(f"{server.url}?tls=true") as locks:
        with pytest.raises(StoreNotReady, match="TLS"):
            locks.lock("x").acquire(20)
    with leasehold.connect(f"{server.url}?ca={cert}.not") as locks:
        with pytest.raises(StoreNotReady, match="certificate"):
            locks.lock("x").acquire(20)
    with leasehold.connect(server.url) as locks:
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(1)


async def _one_in_asyncio(url: str) -> None:
    async with aio.connect(url) as locks:
        assert await (await locks.lock("x").acquire(30)).release()


def test_who_is_cancelled_as_it_connects_leaves_no_connection(
    start_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task hears of the cancellation before it hears that it is connected. What asyncio does of itself then is to
    wait for the server's farewell."""
    cert, key = certificate(tmp_path)
    server = start_server(Encrypted, cert, key)
    made = TaskConnection.connection_made

    async def listen() -> bool:
        transport = TaskTransport(Endpoints(parse(f"{server.url}?ca={cert}&cert={cert}&key={key}")))
        listener = asyncio.create_task(transport.watch(LIMIT))

        def connected(connection: TaskConnection, carrier: Any) -> None:
            made(connection, carrier)
            server.pause()
            listener.cancel()

        monkeypatch.setattr(TaskConnection, "connection_made", connected)
        await asyncio.wait({listener})
        await transport.close()
        monkeypatch.undo()
        return listener.cancelled()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert asyncio.run(listen())
        gc.collect()
    server.resume()
    assert not [str(each.message) for each in seen]


# Channels of grpcio.


def test_a_channel_of_the_users(server: Etcd, namespace: str) -> None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        with leasehold.connect(channel, namespace=namespace, ttl=20, renew_every=0.3) as locks:
            lease = locks.lock("x").acquire(30)
            waiter = Waiter(locks, "x")
            eventually(lambda: len(keys(server, namespace, "w")) == 1)
            eventually(lambda: locks.metrics().renewals >= 3)
            assert lease.valid
            assert lease.release()
            assert waiter.lease().release()
        assert not keys(server, namespace, "h")
        channel.unary_unary(wire.RANGE.decode())(wire.range_of(b"x"), timeout=LIMIT)  # still theirs


async def test_a_channel_of_the_users_in_asyncio(server: Etcd, namespace: str) -> None:
    import grpc

    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        async with aio.connect(channel, namespace=namespace) as locks:
            lease = await locks.lock("x").acquire(30)
            waiting = asyncio.ensure_future(locks.lock("x").acquire(30))
            await asyncio.sleep(0.5)
            assert await lease.release()
            assert await (await waiting).release()
        with pytest.raises(TypeError, match=r"for asyncio: give it to leasehold.aio.connect"):
            leasehold.connect(channel)


# Clients that are built on such a channel.


async def contended(locks: aio.Locks) -> None:
    """What needs calls, a watch and renewals."""
    lease = await locks.lock("x", ttl=20, renew_every=0.3).acquire(30)
    waiting = asyncio.ensure_future(locks.lock("x").acquire(60))
    while (seen := await locks.inspect("x")) is None or not seen.waiters or (await locks.metrics()).renewals < 3:
        assert not waiting.done()
        await asyncio.sleep(0.01)
    assert lease.valid
    assert await lease.release()
    assert await (await waiting).release()


async def test_a_client_of_aetcd(server: Etcd, namespace: str) -> None:
    """It connects when it is first used, by us as by its owner, and stays theirs."""
    import aetcd

    client = aetcd.Client("127.0.0.1", server.port)
    async with aio.connect(client, namespace=namespace) as locks:
        await contended(locks)
    assert not keys(server, namespace, "h")
    await client.put(f"leasehold/{namespace}".encode(), b"still theirs")
    with pytest.raises(TypeError, match=r"for asyncio: give it to leasehold.aio.connect"):
        leasehold.connect(client)
    locks = aio.connect(client, namespace=namespace)
    lease = await locks.lock("x").acquire(30)
    await client.close()
    with pytest.raises(StoreUnavailable, match="the client was closed"):
        await locks.lock("y").acquire(0.2)
    assert client.channel is None, "it is not opened again behind its owner's back"
    await client.connect()
    assert await lease.release()
    await locks.close()
    await client.close()


async def test_a_client_of_aetcd_that_logs_in(guarded: Etcd) -> None:
    import aetcd

    async with aetcd.Client("127.0.0.1", guarded.port, "leasehold", "secret") as client:
        async with aio.connect(client, namespace="billing") as locks:
            await contended(locks)
    client = aetcd.Client("127.0.0.1", guarded.port, "leasehold", "wr0ng")
    async with aio.connect(client, namespace="billing") as locks:
        with pytest.raises(StoreNotReady, match="authentication failed") as caught:
            await locks.lock("x").acquire(30)
    assert "wr0ng" not in str(caught.value)
    await client.close()


def test_a_call_that_went_without_a_token_is_made_again(guarded: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has learned that the token is old, between this one's login and its call."""
    process = Process(f"etcd://leasehold:secret@127.0.0.1:{guarded.port}", "billing")
    headers = process.endpoints.headers

    def late(method: bytes) -> Any:
        if method != wire.AUTHENTICATE:
            process.endpoints.logged_out(process.endpoints.token)
            monkeypatch.setattr(process.endpoints, "headers", headers)
        return headers(method)

    with process.locks:
        grant = process.granted("x", A)
        monkeypatch.setattr(process.endpoints, "headers", late)
        assert process.release("x", A, grant)


def test_a_client_for_threads_that_has_a_channel(guarded: Etcd) -> None:
    """As etcd3's: its channel, and the token that it has got by logging in."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{guarded.port}") as channel:
        login = wire.authenticate("leasehold", "secret")
        answer = channel.unary_unary(login.method.decode())(login.messages[0], timeout=LIMIT)
        token = wire.first(wire.read(answer), 2).decode()
        client = SimpleNamespace(channel=channel, metadata=(("token", token),))
        with leasehold.connect(client, namespace="billing") as locks:
            lease = locks.lock("x").acquire(30)
            waiter = Waiter(locks, "x")
            eventually(lambda: locks.inspect("x").waiters == 1)  # type: ignore[union-attr]
            assert lease.release()
            assert waiter.lease().release()
        with pytest.raises(TypeError, match=r"for threads: give it to leasehold.connect"):
            aio.connect(client)
        client.metadata = None
        with (
            leasehold.connect(client, namespace="billing") as locks,
            pytest.raises(StoreNotReady, match="requires a user"),
        ):
            locks.lock("x").acquire(30)


async def test_what_has_no_channel_is_refused() -> None:
    import aetcd

    for connect in (leasehold.connect, aio.connect):
        with pytest.raises(TypeError, match=r"takes a grpc.Channel, .*such as aetcd.Client"):
            connect(aetcd.Client("127.0.0.1").transactions)
        with pytest.raises(TypeError, match=r"takes a URL or a client .*aetcd.*not SimpleNamespace"):
            connect(SimpleNamespace(channel="amqp"))


# URLs.


@pytest.mark.parametrize(
    "url",
    [
        "etcd://host/path",
        "etcd://host:port",
        "etcd://user@host",
        "etcd://:password@host",
        "etcd://a,,b",
        "etcd://host?nonsense=1",
        "etcd://host?tls=maybe",
        "etcd://host?tls=false&ca=x",
        "etcd://host?key=x",
    ],
)
def test_bad_urls(url: str) -> None:
    with pytest.raises(ValueError) as caught:
        leasehold.connect(url)
    assert "password@" not in str(caught.value).replace("user:password@host", "")


def test_urls() -> None:
    assert parse("etcd://").hosts == (("localhost", 2379),)
    assert parse("etcd://a:1,b,[::1]:3").hosts == (("a", 1), ("b", 2379), ("::1", 3))
    address = parse("etcd://u%40:p%3A@h?ca=/x")
    assert (address.user, address.password, address.tls, address.ca) == ("u@", "p:", True, "/x")
    assert "p:" not in address.where


# The doctor.


def about_users(finding: Finding) -> bool:
    return finding.message.startswith("authentication is")


@pytest.mark.parametrize("question", [wire.AUTH_STATUS, b"/etcdserverpb.Auth/NotIn34"])
def test_doctor_says_whether_authentication_is_on(
    guarded: Etcd, server: Etcd, question: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the server does not know the question, as 3.4 does not."""
    monkeypatch.setattr(wire, "AUTH_STATUS", question)

    def said(login: str, server: Etcd) -> tuple[str, str]:
        [finding] = filter(about_users, doctor(f"etcd://{login}{server.address}", "billing"))
        assert bool(finding.advice) == (finding.level != "ok")
        assert "secret" not in finding.message + finding.advice
        return finding.level, finding.message

    assert said("root:secret@", guarded) == ("ok", "authentication is on; this client logs in as user root")
    assert said("leasehold:secret@", guarded) == ("ok", "authentication is on; this client logs in as user leasehold")
    assert said("leasehold:wrong@", guarded) == ("ok", "authentication is on; this client logs in as user leasehold")
    assert said("", guarded) == ("error", "authentication is on; this client has no user")
    level, message = said("", server)
    assert (level, message[:22]) == ("warning", "authentication is off:")
    assert said("root:secret@", server) == ("error", "authentication is off: no user can log in")


def test_doctor_of_a_healthy_server(server: Etcd) -> None:
    found = doctor(server.url)
    assert {finding.level for finding in found if not about_users(finding)} == {"ok"}, found
    assert [finding.level for finding in found if about_users(finding)] == ["warning"], "it has no users"
    assert not [key for key in keys(server, "", "h") if "doctor" in key]


@pytest.mark.slow
def test_doctor_counts_the_members_and_not_the_hosts_of_the_url(start_server: Any) -> None:
    cluster: EtcdCluster = start_server(EtcdCluster, 4)
    found = doctor(cluster.members[0].url)
    assert any("4 voting members" in finding.message for finding in found)
    assert any("names 1 of 4" in finding.message for finding in found)


def test_doctor_as_a_user_with_the_least_rights(guarded: Etcd) -> None:
    """The role of the documentation is enough: what it may not see is said, and is no error."""
    url = f"etcd://leasehold:secret@{guarded.address}"
    found = doctor(url, "billing")
    assert {finding.level for finding in found} == {"ok", "warning"}, found
    hidden = [finding.message for finding in found if finding.level == "warning"]
    assert "this user may not see its status" in hidden
    assert all("may not see" in message for message in hidden)
    [finding] = filter(about_users, found)
    assert (finding.level, finding.message[-14:]) == ("ok", "user leasehold")
    assert any("can acquire and release leases" in finding.message for finding in found)
    command = [sys.executable, "-m", "leasehold", "doctor", "--namespace", "billing", "--url", url]
    said = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert said.returncode == 0, said.stdout
    assert any(finding.level == "error" for finding in doctor(url, "sales"))


def test_doctor_says_what_a_user_may_not_see_only_if_that_is_why(server: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    send = ThreadTransport.send

    def failing(transport: ThreadTransport, call: wire.EtcdCall, limit: float) -> list[bytes]:
        if call.method in (wire.MEMBERS, wire.ALARM):
            raise ConnectionResetError("gone")
        return send(transport, call, limit)

    monkeypatch.setattr(ThreadTransport, "send", failing)
    found = [finding for finding in doctor(server.url) if finding.level == "warning" and not about_users(finding)]
    assert [finding.message for finding in found] == ["the members cannot be seen", "the alarms cannot be seen"]
    assert all("gone" in finding.advice for finding in found)


def test_doctor_of_a_server_that_is_away() -> None:
    [finding] = doctor("etcd://127.0.0.1:1")
    assert finding.level == "error"
    assert finding.advice

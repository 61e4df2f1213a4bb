"""``rediss://``: a server that speaks TLS alone, with a certificate of an authority that the test makes."""

import asyncio
import datetime
import gc
import ipaddress
import ssl
import threading
import time
import warnings
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis_tools import Renewed

import leasehold
from leasehold import aio
from leasehold.errors import StoreNotReady
from leasehold.stores.redis.doctor import doctor
from servers.base import NotReady
from servers.redis import Redis


def name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def make(folder: Path) -> None:
    """ca.pem, and server.pem and server.key, signed by it, for 127.0.0.1."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    begin, end = now - datetime.timedelta(days=1), now + datetime.timedelta(days=1)

    def certificate(subject: str, public: ec.EllipticCurvePublicKey, ca: bool) -> x509.CertificateBuilder:
        made = x509.CertificateBuilder(name("authority"), name(subject), public, x509.random_serial_number())
        made = made.not_valid_before(begin).not_valid_after(end)
        return made.add_extension(x509.BasicConstraints(ca, None), critical=True)

    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = {
        "ca.pem": certificate("authority", authority.public_key(), True),
        "server.pem": certificate("redis", key.public_key(), False).add_extension(address, critical=False),
    }
    for file, builder in signed.items():
        pem = builder.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        (folder / file).write_bytes(pem)
    (folder / "server.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


class TlsRedis(Redis):
    """Listens with TLS alone."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ca = folder / "ca.pem"
        self.options += ["--tls-port", str(self.port), "--tls-cert-file", str(folder / "server.pem")]
        self.options += ["--tls-key-file", str(folder / "server.key"), "--tls-ca-cert-file", str(self.ca)]
        self.options += ["--tls-auth-clients", "no", "--port", "0"]

    @property
    def url(self) -> str:
        return f"rediss://{self.address}/0?ssl_ca_certs={self.ca}"

    def ping(self, timeout: float) -> None:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=timeout) as client:
                client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise NotReady(str(error)) from error


@pytest.fixture
def server(start_server, tmp_path: Path) -> TlsRedis:
    make(tmp_path)
    found: TlsRedis = start_server(TlsRedis, tmp_path)
    return found


OFTEN = {"ttl": 60, "renew_every": 0.5, "max_renew_failures": 1000}
"""Renewed soon, and not lost when that fails a few times, be it for want of a processor."""


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_threads(server: TlsRedis, scheme: str) -> None:
    """Calls, renewal, a waiter that is pushed its lease, a listing: all over TLS."""
    url = server.url.replace("rediss", scheme)
    with leasehold.connect(url, **OFTEN) as locks, leasehold.connect(server.url) as other:
        lease = locks.lock("a").acquire()
        assert other.lock("a").try_acquire() is None
        got: list[int] = []
        waiter = threading.Thread(target=lambda: got.append(other.lock("a").acquire(timeout=60).token))
        waiter.start()
        renewed = Renewed([lease])
        while not renewed():
            time.sleep(0.01)
        assert waiter.is_alive()
        assert [each.name for each in other.leases()] == ["a"]
        assert lease.release() is True
        waiter.join(60)
        assert got > [lease.token]


async def take(locks: aio.Locks) -> aio.Lease:
    return await locks.lock("a").acquire(timeout=60)


async def test_tasks(server: TlsRedis) -> None:
    async with aio.connect(server.url, **OFTEN) as locks, aio.connect(server.url) as other:
        lease = await locks.lock("a").acquire()
        waiter = asyncio.ensure_future(take(other))
        renewed = Renewed([lease])
        while not renewed():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not waiter.done()
        assert await lease.release() is True
        async with asyncio.timeout(60):
            assert (await waiter).token > lease.token


def test_a_loop_that_ends_with_the_close_leaves_no_transport(server: TlsRedis) -> None:
    """TLS says goodbye, and waits for the other side: so does the close."""

    async def use() -> None:
        async with aio.connect(server.url) as locks:
            await (await take(locks)).release()

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            asyncio.run(use())
        gc.collect()
    assert [str(each.message) for each in found if f":{server.port}" in str(each.message)] == []
    assert [str(each.message) for each in found if "unclosed transport" in str(each.message)] == []


def test_a_client_of_the_users_own(server: TlsRedis) -> None:
    client = redis.Redis.from_url(server.url)
    with leasehold.connect(client) as locks:
        assert locks.lock("a").acquire().release() is True
    client.close()


def test_a_certificate_that_is_not_trusted(server: TlsRedis) -> None:
    with leasehold.connect(f"rediss://:s3cret@{server.address}/0") as locks:
        with pytest.raises(StoreNotReady, match="TLS") as caught:
            locks.lock("a").try_acquire()
    assert "s3cret" not in str(caught.value)
    causes = [caught.value.__cause__]
    while causes[-1] is not None:
        causes.append(causes[-1].__cause__ or causes[-1].__context__)
    assert any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes)


def test_plain_to_a_tls_port(server: TlsRedis) -> None:
    with leasehold.connect(f"redis://{server.address}/0") as locks:
        with pytest.raises(leasehold.StoreError, match=r"127\.0\.0\.1"):
            locks.lock("a").try_acquire()


def test_the_doctor(server: TlsRedis) -> None:
    assert {finding.level for finding in doctor(server.url)} == {"ok", "warning"}
    (finding,) = doctor(f"rediss://{server.address}/0")
    assert finding.level == "error"
    assert "TLS" in finding.advice

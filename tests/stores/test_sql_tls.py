"""TLS with a certificate of an authority that the test makes: threads and asyncio trust the same servers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sql_servers import KINDS, Database
from test_redis_tls import make

import leasehold
from leasehold import StoreNotReady, aio
from leasehold.testing.handles import eventually
from servers.mysql import MariaDB, MySQL
from servers.postgresql import ROOT

pytestmark = pytest.mark.server


class TlsMariaDB(MariaDB):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.certificates = folder

    def command(self) -> list[str]:
        files = {"ssl-ca": "ca.pem", "ssl-cert": "server.pem", "ssl-key": "server.key"}
        return [*super().command(), *(f"--{option}={self.certificates / file}" for option, file in files.items())]


class TlsMySQL(TlsMariaDB, MySQL):
    pass


@pytest.fixture(params=list(KINDS))
def secure(request: pytest.FixtureRequest, tmp_path: Path, start_server: Callable[..., Any]) -> Database:
    make(tmp_path)
    (tmp_path / "others").mkdir()
    make(tmp_path / "others")
    if request.param != "postgresql":
        return Database(start_server({"mariadb": TlsMariaDB, "mysql": TlsMySQL}[request.param], tmp_path))
    database = Database(start_server(KINDS["postgresql"]))
    for name in ("server.pem", "server.key"):
        file = shutil.copy(tmp_path / name, database.server.data)
        Path(file).chmod(0o600)
        if ROOT:
            shutil.chown(file, "nobody", "nogroup")
    for setting in ("ssl_cert_file = 'server.pem'", "ssl_key_file = 'server.key'", "ssl = on"):
        database.sql(f"ALTER SYSTEM SET {setting}")
    database.sql("SELECT pg_reload_conf()")
    eventually(lambda: database.sql("SHOW ssl") == [("on",)])
    return database


async def use(url: str) -> None:
    """Both sides."""
    with leasehold.connect(url) as locks:
        locks.lock("name").acquire().release()
    async with aio.connect(url) as tasks, tasks.lock("name"):
        pass


async def refused(url: str, why: str) -> None:
    with leasehold.connect(url) as locks, pytest.raises(StoreNotReady, match=why):
        locks.lock("name").acquire()
    async with aio.connect(url) as tasks:
        with pytest.raises(StoreNotReady, match=why):
            await tasks.lock("name").acquire()


def options(database: Database, authority: Path | None, strict: bool) -> str:
    if database.is_postgresql:
        return f"?sslmode=verify-full&sslrootcert={authority or 'system'}"
    chosen = f"?ssl_ca={authority}" if authority else "?ssl_verify_cert=true"
    return chosen + ("&ssl_verify_identity=true" if strict else "")


async def test_a_certificate_of_a_known_authority(secure: Database, tmp_path: Path) -> None:
    for strict in (False, True):
        await use(secure.url + options(secure, tmp_path / "ca.pem", strict))
    if not secure.is_postgresql:  # encrypted, and nothing asked of the certificate
        await use(secure.url + "?ssl_verify_cert=false")
        await use(secure.url + "?ssl-mode=REQUIRED")
        for mode in ("verify_ca", "VERIFY_IDENTITY"):
            await use(f"{secure.url}?ssl_mode={mode}&ssl_ca={tmp_path / 'ca.pem'}")


async def test_a_certificate_of_another_authority(secure: Database, tmp_path: Path) -> None:
    await refused(secure.url + options(secure, tmp_path / "others" / "ca.pem", False), "certificate|signature")


async def test_a_certificate_that_the_system_does_not_know(secure: Database) -> None:
    await refused(secure.url + options(secure, None, False), "certificate")
    if not secure.is_postgresql:
        await refused(f"{secure.url}?ssl-mode=VERIFY_CA", "certificate")


async def test_a_certificate_for_another_host(secure: Database, tmp_path: Path) -> None:
    url = secure.url.replace("127.0.0.1", "localhost")
    await refused(url + options(secure, tmp_path / "ca.pem", True), "certificate")
    if not secure.is_postgresql:
        await refused(f"{url}?ssl_mode=verify_identity&ssl_ca={tmp_path / 'ca.pem'}", "certificate")


@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
async def test_a_server_without_tls(kind: str, tmp_path: Path, start_server: Callable[..., Any]) -> None:
    class Plain(KINDS[kind]):  # type: ignore[misc]
        def command(self) -> list[str]:
            return [*super().command(), "--skip-ssl" if kind == "mariadb" else "--tls-version="]

    make(tmp_path)
    await refused(f"{start_server(Plain).url}?ssl_ca={tmp_path / 'ca.pem'}", r"TLS|SSL|handshake")


def test_wrong_options() -> None:
    with pytest.raises(ValueError, match="ssl_verify_cert"):
        leasehold.connect("mysql://localhost/db?ssl_verify_cert=perhaps")
    with leasehold.connect("mysql://localhost:1/db?ssl_ca=/nowhere.pem") as locks:
        with pytest.raises(StoreNotReady, match="TLS"):
            locks.lock("name").acquire()

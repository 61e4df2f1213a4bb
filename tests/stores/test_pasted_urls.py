"""URLs as people have them: those of SQLAlchemy, of hosted databases, of other libraries; and what a wrong one says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sql_servers import Database

import leasehold
from leasehold import admin
from leasehold.testing.handles import Locks
from servers.redis import Redis

PASTED = {
    "postgresql": [
        ("postgres", ""),
        ("POSTGRESQL", ""),
        ("postgresql+psycopg", "?sslmode=disable&connect_timeout=5"),
        ("postgresql+asyncpg", "?ssl=disable"),
        ("postgres+psycopg2", "?table=leasehold&sslmode=prefer"),
    ],
    "mysql": [
        ("mysql+pymysql", "?charset=utf8mb4&binary_prefix=true"),
        ("mysql+aiomysql", "?connect_timeout=5&read_timeout=5&write_timeout=5"),
        ("mysql+mysqldb", "?ssl_mode=DISABLED&program_name=app"),
        ("mariadb+mariadbconnector", "?ssl-mode=PREFERRED"),
    ],
}
PASTED["mariadb"] = PASTED["mysql"]


@pytest.mark.server
def test_url_of_sqlalchemy_leads_to_the_same_leases(connect: Callable[..., Locks], database: Database) -> None:
    with leasehold.connect(database.url, namespace="pasted") as plain:
        for number, (scheme, options) in enumerate(PASTED[database.kind]):
            url = f"{scheme}{database.url[database.url.index('://') :]}{options}"
            lease = connect(url, namespace="pasted").lock(f"job {number}").acquire()
            found = plain.inspect(f"job {number}")
            assert found is not None
            assert found.token == lease.token
            assert admin.doctor(url)[0] == admin.doctor(database.url)[0]


@pytest.mark.server
@pytest.mark.parametrize("kind", ["mariadb", "mysql"])
def test_option_of_a_mysql_url_goes_to_the_driver(
    kind: str, connect: Callable[..., Locks], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The user is in a file, as the driver reads it."""
    (tmp_path / "my.cnf").write_text("[app]\nuser = root\n")
    url = request.getfixturevalue(f"{kind}_server").url
    assert "//root@" in url
    options = f"read_default_file={tmp_path}/my.cnf&read_default_group=app"
    locks = connect(f"{url.replace('root@', '')}?{options}", namespace="option")
    locks.lock("a").acquire().release()
    with pytest.raises(leasehold.StoreNotReady):
        connect(url.replace("root@", "nobody:x@"), namespace="option").lock("a").acquire()


@pytest.mark.server
@pytest.mark.parametrize("scheme", ["unix", "redis+unix", "valkey+unix"])
def test_url_of_a_unix_socket(
    scheme: str, connect: Callable[..., Locks], start_server: Callable[..., Any], tmp_path: Path
) -> None:
    start_server(Redis, "--unixsocket", str(tmp_path / "redis.sock"))
    locks = connect(f"{scheme}://{tmp_path}/redis.sock?db=3")
    lease = locks.lock("a").acquire()
    assert locks.lock("a").try_acquire() is None
    lease.release()


def test_slashes_of_a_sqlite_url_are_those_of_sqlalchemy(
    connect: Callable[..., Locks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    lease = connect("sqlite:///relative.db").lock("a").acquire()
    assert (tmp_path / "here" / "relative.db").exists()
    for absolute in (f"sqlite:///{tmp_path}/here/relative.db", f"SQLite+aiosqlite:///{tmp_path}/here/relative.db"):
        found = connect(absolute).inspect("a")
        assert found is not None
        assert found.token == lease.token
    assert f"{tmp_path}/here".count("/") > 1  # so it was four slashes


@pytest.mark.parametrize(
    ("scheme", "meant"),
    [
        ("postgre", "postgresql"),
        ("reddis", "redis"),
        ("redis-sentinel", "redis+sentinel"),
        ("rediss+unix", "redis+unix"),
        ("mongo", "mongodb"),
        ("mysqli", "mysql"),
        ("zookeper", "zookeeper"),
        ("sqlite3", "sqlite"),
    ],
)
def test_unknown_scheme_suggests_the_nearest(scheme: str, meant: str) -> None:
    says = rf"unknown scheme '{scheme}' in the store's URL \(did you mean {meant}\?\): use one of memory, "
    with pytest.raises(ValueError, match=says.replace("+", r"\+")):
        leasehold.connect(f"{scheme}://localhost/0")


@pytest.mark.parametrize("login", ["", "ann:hunter2@"])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://{}h/db?tabel=x", "libpq has no option 'tabel', and leasehold has table, pool_size, push"),
        ("mysql+pymysql://{}h/db?tabel=x", "unknown option 'tabel' .* known are table, pool_size, push, unix_socket"),
        ("mongodb://{}h/db?colection=x", "unknown option 'colection'; known are collection, push and the options"),
        ("mongodb+srv://{}h.example.net/db?w=1&colection=x", "unknown option 'colection'; known are collection, push"),
        ("redis://{}h/0?replica=1", "unknown option 'replica' .* known are replicas, and the options of redis-py"),
        ("redlock://{}h1,h2,h3?replica=1", "unknown option 'replica' .* known are replicas"),
        ("etcd://{}h?tsl=true", "unknown option 'tsl' .* known are tls, ca, cert"),
        ("zookeeper://{}h?acls=open", "unknown option 'acls' .* known are ca, certfile"),
    ],
)
def test_unknown_option_lists_the_known_ones(url: str, says: str, login: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        leasehold.connect(url.format(login))
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mongodb+srv://ann:secret@cluster0.example.mongodb.net/app?retryWrites=true&w=majority&appName=Cluster0",
        "mongodb://ann:secret@h1:27017,h2:27017/app?replicaSet=rs0&authSource=admin&tls=true",
        "rediss://default:secret@host.example:6380/0?ssl_cert_reqs=none",
        "redis://:secret@host.example:6379?decode_responses=True&health_check_interval=30&socket_timeout=5",
        "mysql://doadmin:secret@db.example:25060/defaultdb?ssl-mode=REQUIRED",
        "postgres://ann:secret@ep-1.example.tech/app?sslmode=require&channel_binding=require",
    ],
)
def test_url_of_a_hosted_database_is_accepted(url: str) -> None:
    leasehold.connect(url)


def test_wrong_mode_of_tls_is_refused() -> None:
    with pytest.raises(ValueError, match=r"ssl_mode must be one of disabled, preferred, .* not 'sometimes'"):
        leasehold.connect("mysql://h/db?ssl-mode=sometimes")


def test_missing_file_of_a_mongodb_url_is_named() -> None:
    with pytest.raises(ValueError, match=r"bad MongoDB URL: cannot read /nowhere/ca.pem: No such file"):
        leasehold.connect("mongodb://ann:secret@h/db?tlsCAFile=/nowhere/ca.pem")

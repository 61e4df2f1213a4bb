"""From a URL to where and how to connect. No password is ever in a message of ours."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

DEFAULT_PORT = 6379
SENTINEL_PORT = 26379
OURS = ("replicas",)


class RedisAddress(NamedTuple):
    """What a URL says."""

    kind: str
    """single, unix, sentinel or cluster"""
    hosts: tuple[tuple[str, int], ...]
    path: str
    """Of a Unix socket."""
    master: str
    """The name that Sentinels know the primary by."""
    tls: bool
    replicas: int
    options: dict[str, Any]
    """For redis-py's connections: db, username, password and whatever the URL adds."""
    sentinel_options: dict[str, Any]
    """The Sentinels' own username and password."""

    @property
    def where(self) -> str:
        """For messages: no user, no password."""
        if self.kind == "unix":
            return f"redis at {self.path}"
        hosts = ",".join(f"{host}:{port}" for host, port in self.hosts)
        return f"redis at {hosts}" + (f" ({self.master})" if self.master else "")


def parse(url: str, *, any_db: bool = False) -> RedisAddress:
    scheme, _, rest = url.partition("://")
    base, plus, kind = scheme.lower().partition("+")
    tls = base in ("rediss", "valkeys")
    if base == "unix":
        base, plus, kind = "redis", "+", "unix"
    kind = kind if plus else "single"
    if base not in ("redis", "rediss", "valkey", "valkeys") or kind not in ("single", "unix", "sentinel", "cluster"):
        raise ValueError(f"{scheme}:// is not a scheme of a Redis URL")
    authority, slash, tail = _split(rest)
    path, _, query = (slash + tail).partition("?")
    options: dict[str, Any] = {}
    user, at, authority = authority.rpartition("@")
    if at:
        name, colon, password = user.partition(":")
        if name:
            options["username"] = unquote(name)
        if colon:
            options["password"] = unquote(password)
    replicas, given = _options(query)
    master, db_part = "", path.strip("/")
    if kind == "unix":
        if authority or not path.strip("/"):
            raise ValueError("the URL of a Unix socket names its path: redis+unix:///run/redis.sock?db=0")
        db_part = ""
    elif kind == "sentinel":
        master, _, db_part = db_part.partition("/")
        master = unquote(master)
        if not master:
            raise ValueError("a Sentinel URL names the primary: redis+sentinel://host1,host2/mymaster/0")
    if db_part:
        if not db_part.isdigit():
            raise ValueError("in the Redis URL, the path must be the number of a database, such as /0")
        options["db"] = int(db_part)
    if kind == "cluster" and options.get("db") and not any_db:
        raise ValueError("a cluster has only database 0: remove the number from the URL")
    hosts = () if kind == "unix" else _hosts(authority, SENTINEL_PORT if kind == "sentinel" else DEFAULT_PORT)
    if kind == "single" and len(hosts) > 1:
        raise ValueError("redis:// takes one host; for several use redis+sentinel://, redis+cluster:// or redlock://")
    sentinel = {name[9:]: value for name, value in given if name in ("sentinel_username", "sentinel_password")}
    options.update(_driver_options([each for each in given if each[0][9:] not in sentinel]))
    path = unquote(path) if kind == "unix" else ""
    return RedisAddress(kind, hosts, path, master, tls, replicas, options, sentinel)


def _split(rest: str) -> tuple[str, str, str]:
    """What comes before the path or the options, and these."""
    for place, char in enumerate(rest):
        if char in "/?":
            return rest[:place], char, rest[place + 1 :]
    return rest, "", ""


def _hosts(authority: str, default: int) -> tuple[tuple[str, int], ...]:
    found = []
    for number, each in enumerate(authority.split(",") if authority else ["localhost"], 1):
        try:
            parts = urlsplit(f"//{each}")
            host, port = parts.hostname, parts.port
        except ValueError:
            # Not quoted: without an @ it may be a user and a password.
            raise ValueError(f"in the Redis URL, host {number} is not host:port") from None
        if not host:
            raise ValueError("in the Redis URL, a host is missing")
        found.append((host, default if port is None else port))
    return tuple(found)


def _options(query: str) -> tuple[int, list[tuple[str, str]]]:
    """Ours, and the others."""
    replicas = 0
    others = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name == "replicas":
            if not value.isdigit():
                raise ValueError(f"replicas in the Redis URL must be a number, not {value!r}")
            replicas = int(value)
        else:
            others.append((name, value))
    return replicas, others


_NOT_YOURS = {
    "decode_responses",
    "encoding",
    "protocol",
    "retry",
    "retry_on_error",
    "retry_on_timeout",
    "max_connections",
    "socket_timeout",
    "socket_connect_timeout",
    "health_check_interval",
}


def _driver_options(given: list[tuple[str, str]]) -> dict[str, Any]:
    """As redis-py reads them. Those that would change how we talk are left out: each call has its own limit."""
    from redis.connection import parse_url

    try:
        read = parse_url("redis://?" + urlencode(given))  # type: ignore[no-untyped-call]
    except ValueError as error:
        raise ValueError(f"bad option in the Redis URL: {error}") from None
    return {name: value for name, value in read.items() if name not in _NOT_YOURS}

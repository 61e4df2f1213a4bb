"""``etcd://[user:password@]host[:port][,host[:port]…][?option=value…]``"""

from __future__ import annotations

import ssl
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

DEFAULT_PORT = 2379
_TLS = ("tls", "ca", "cert", "key", "server_name")


class EtcdAddress(NamedTuple):
    """Where etcd is, and the user that logs in."""

    hosts: tuple[tuple[str, int], ...]
    user: str = ""
    password: str = ""
    tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""
    server_name: str = ""

    @property
    def where(self) -> str:
        """For messages: without the password."""
        return "etcd " + ",".join(f"{host}:{port}" for host, port in self.hosts)

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.cert:
            context.load_cert_chain(self.cert, self.key or None)
        context.set_alpn_protocols(["h2"])
        return context


def parse(url: str) -> EtcdAddress:
    rest = url.partition("://")[2]
    authority, _, query = rest.partition("?")
    authority, _, path = authority.partition("/")
    if path:
        raise ValueError("an etcd URL has no path: etcd://host:2379,host:2379?option=value")
    login, at, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    if at and not (user and password):
        raise ValueError("in the etcd URL, give both a user and a password: etcd://user:password@host")
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(_TLS))
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r} in the etcd URL; known are {', '.join(_TLS)}")
    switch = given.pop("tls", "")
    if switch not in ("", "true", "false"):
        raise ValueError(f"tls in the etcd URL must be true or false, not {switch!r}")
    if switch == "false" and given:
        raise ValueError("tls=false in the etcd URL cannot be combined with ca, cert, key or server_name")
    if "key" in given and "cert" not in given:
        raise ValueError("key in the etcd URL needs cert")
    tls = switch == "true" or bool(given)
    return EtcdAddress(_hosts(hosts), unquote(user), unquote(password), tls, **given)


def _hosts(authority: str) -> tuple[tuple[str, int], ...]:
    found = []
    for number, each in enumerate(authority.split(",") if authority else ["localhost"], 1):
        try:
            parts = urlsplit(f"//{each}")
            host, port = parts.hostname, parts.port
        except ValueError:
            # Not quoted: without an @ it may be a user and a password.
            raise ValueError(f"in the etcd URL, host {number} is not host:port") from None
        if not host:
            raise ValueError("in the etcd URL, a host is missing")
        found.append((host, DEFAULT_PORT if port is None else port))
    return tuple(found)

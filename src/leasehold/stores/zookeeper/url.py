"""``zookeeper://user:password@h1:p1,h2:p2/chroot?…``: where the servers are, and what kazoo is told about them."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

PORT = 2181
_FILES = ("ca", "certfile", "keyfile", "keyfile_password")
_SWITCHES = ("use_ssl", "verify_certs", "check_hostname", "randomize_hosts")
_ACLS = {"open": OPEN_ACL_UNSAFE, "creator": CREATOR_ALL_ACL}


class ZooKeeperAddress(NamedTuple):
    hosts: str
    chroot: str
    options: dict[str, Any]
    """For KazooClient."""

    @property
    def where(self) -> str:
        """For messages: no password in it."""
        return f"zookeeper://{self.hosts}{self.chroot}"


def parse(url: str) -> ZooKeeperAddress:
    rest = url.partition("://")[2]
    rest, _, query = rest.partition("?")
    place, slash, path = rest.partition("/")
    credentials, at, hosts = place.rpartition("@")
    options: dict[str, Any] = {}
    if at:
        user, colon, password = credentials.partition(":")
        if not (user and colon):
            raise ValueError("zookeeper: the URL needs user:password before the @")
        options["auth_data"] = [("digest", f"{unquote(user)}:{unquote(password)}")]
        options["default_acl"] = CREATOR_ALL_ACL
    for name, value in parse_qsl(query, keep_blank_values=True):
        _option(options, name, value)
    if ("certfile" in options) != ("keyfile" in options):
        raise ValueError("zookeeper: a certificate needs its key: give both certfile and keyfile")
    if options.get("check_hostname") and not options.get("verify_certs", True):
        raise ValueError("zookeeper: check_hostname=true needs verify_certs=true")
    chroot = "/" + "/".join(part for part in unquote(path).split("/") if part) if slash else ""
    if any(part in (".", "..") for part in chroot.split("/")):
        raise ValueError(f"zookeeper: {chroot!r} is not a valid path of a node")
    return ZooKeeperAddress(_hosts(hosts), chroot.rstrip("/"), options)


def _hosts(text: str) -> str:
    found = []
    for number, each in enumerate(text.split(","), 1):
        host, colon, port = each.rpartition(":") if not each.endswith("]") else (each, "", "")
        if not colon:
            host, port = each, str(PORT)
        if not host or any(character.isspace() for character in host):
            raise ValueError("zookeeper: the URL names its servers as host:port, separated by commas")
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            # Not quoted: without an @ it may be a password.
            raise ValueError(f"zookeeper: the port of host {number} is not a number from 1 to 65535")
        found.append(f"{host}:{port}")
    return ",".join(found)


def _option(options: dict[str, Any], name: str, value: str) -> None:
    if name in _FILES:
        options[name] = value
        options["use_ssl"] = True
    elif name in _SWITCHES:
        if value.lower() not in ("true", "false", "1", "0"):
            raise ValueError(f"zookeeper: {name} must be true or false, not {value!r}")
        options[name] = value.lower() in ("true", "1")
    elif name == "acl":
        if value not in _ACLS:
            raise ValueError(f"zookeeper: acl must be {' or '.join(_ACLS)}, not {value!r}")
        options["default_acl"] = _ACLS[value]
    else:
        known = ", ".join((*_FILES, *_SWITCHES, "acl"))
        raise ValueError(f"zookeeper: unknown option {name!r} in the store's URL; known are {known}")

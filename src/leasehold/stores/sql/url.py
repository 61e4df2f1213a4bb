"""What the URLs of SQL servers have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from .dialect import DEFAULT_TABLE, check_table
from .session import POOL_SIZE

OURS = ("table", "pool_size", "push")
"""The options of a URL that are leasehold's own."""


class SqlAddress(NamedTuple):
    """A checked URL. ``options`` are the driver's."""

    host: str | None
    port: int | None
    user: str | None
    password: str | None
    database: str | None
    options: dict[str, str]
    table: str
    pool_size: int
    push: bool


def read_url(url: str) -> SqlAddress:
    """The parts of a URL; a ValueError says which part is wrong, and never shows the password."""
    scheme = url.partition("://")[0]
    try:
        parts = urlsplit(url)
        several = "," in parts.netloc  # hosts: PostgreSQL's driver reads them itself
        port = None if several else parts.port
    except ValueError:
        raise ValueError(f"{scheme}: the port in the store's URL is not a number from 0 to 65535") from None
    if parts.fragment:
        raise ValueError(f"{scheme}: the store's URL has a #fragment; write # in a password as %23")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    table = check_table(options.pop("table", DEFAULT_TABLE))
    size = _number(options.pop("pool_size", str(POOL_SIZE)), "pool_size")
    push = options.pop("push", "on")
    if push not in ("on", "off"):
        raise ValueError(f"push must be on or off, not {push!r}")

    def plain(text: str | None) -> str | None:
        return None if text is None else unquote(text)

    database = unquote(parts.path[1:]) or None
    user, password = plain(parts.username), plain(parts.password)
    return SqlAddress(parts.hostname, port, user, password, database, options, table, size, push == "on")


def _number(text: str, what: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise ValueError(f"{what} must be a number from 1 to 1000, not {text!r}")
    return int(text)


def refuse(options: Collection[str], known: Collection[str], scheme: str) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        names = ", ".join((*OURS, *known))
        raise ValueError(f"{scheme}: unknown option {unknown[0]!r} in the store's URL; known are {names}")


def without(message: object, password: Any) -> str:
    """A driver's message without the password, should it ever be in there; one line."""
    text = " ".join(str(message).split())
    return text.replace(password, "…") if password else text

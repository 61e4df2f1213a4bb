"""What redis-py's errors mean: unavailable (outcome unknown, worth a retry), or not ready; and damaged records."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from redis import exceptions as redis_errors

from ...errors import StoreError, StoreNotReady, StoreUnavailable
from ..common.causes import cut_chain

DRIVER_ERRORS = (redis_errors.RedisError, OSError)
"""Everything that a call to redis-py raises for reasons that lie outside this process."""

# What an error reply says, somewhere in its text: Redis 6.2 hides the code of an error inside a script.
_PASSING = (
    "LOADING",
    "MASTERDOWN",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "NOREPLICAS",
    "BUSY ",
    "max number of clients",
    "ASK ",
    "WAIT cannot be used with replica",
)
_ACL = "the user's ACL lacks a permission: docs/stores/redis.md shows the ACL that leasehold needs"
_MEND = (
    ("LEASEHOLDRECORD", "a record is damaged, or of another program: delete its key"),
    ("LEASEHOLDFORMAT", "a record was written by a newer leasehold: upgrade leasehold"),
    (
        "WRONGTYPE",
        "another program wrote a key that starts with 'leasehold:{': remove the key, or use another database or "
        "namespace",
    ),
    ("OOM ", "the server is out of memory: raise its maxmemory, or free memory"),
    ("NOPERM", _ACL),
    ("unauthenticated", "the server requires a password: redis://user:password@host"),
    ("Authentication required", "the server requires a password: redis://user:password@host"),
    ("WRONGPASS", "authentication failed: check the user name and password"),
    ("invalid password", "authentication failed: check the password"),
    ("invalid username-password", "authentication failed: check the user name and password"),
    ("without any password configured", "the server has no password for this user: remove the password from the URL"),
    ("DB index", "the server has no database with this number: check the number at the end of the URL"),
    ("SELECT is not allowed in cluster", "a cluster has only database 0: remove the number from the URL"),
    ("MISCONF", "the server cannot save its data and refuses writes: see its log"),
    ("DENIED", "the server is in protected mode: set a password, or bind it to this address"),
    ("unknown command", "the server lacks a command that leasehold needs: use Redis 6.2 or later, or Valkey"),
)


# redis-py takes the code of an error reply away and makes it a class.
_CODES: Mapping[type[Exception], str] = {
    redis_errors.BusyLoadingError: "LOADING",
    redis_errors.MasterDownError: "MASTERDOWN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.NoPermissionError: "NOPERM",
    redis_errors.OutOfMemoryError: "OOM",
    redis_errors.AskError: "ASK",
}


def text_of(error: BaseException) -> str:
    """The text of an error reply, its code first."""
    code = _CODES.get(type(error), "") if isinstance(error, redis_errors.RedisError) else ""
    text = str(error)
    return text if not code or text.startswith(code) else f"{code} {text}"


def translate(error: BaseException, where: str, *, was_writable: bool = False) -> StoreError:
    """``was_writable``: whether a write has succeeded there before, so that a replica is one by failover."""
    text = text_of(error)
    cut_chain(error)
    if _is_tls(error):
        return StoreNotReady(
            f"{where}: TLS connection failed ({_reason(error)}): check that the port speaks TLS and that the "
            "certificate is trusted"
        )
    if "READONLY" in text or "read only replica" in text:
        if was_writable:
            return StoreUnavailable(f"{where}: the server became a replica; looking for the new primary")
        return StoreNotReady(
            f"{where}: the server is a read-only replica: give the primary's address, or use redis+sentinel://"
        )
    if isinstance(error, redis_errors.MovedError):
        return StoreNotReady(f"{where}: the server belongs to a cluster: use redis+cluster://")
    for sign in _PASSING:
        if sign in text:
            return StoreUnavailable(f"{where}: {_first_line(text)}")
    for sign, how in _MEND:
        if sign in text:
            return StoreNotReady(f"{where}: {how}")
    if isinstance(error, redis_errors.ResponseError):
        return StoreNotReady(f"{where}: the server refused the command: {_first_line(text)}")
    return StoreUnavailable(f"{where}: {_first_line(text) or type(error).__name__}")


def translate_each(replies: Iterable[Any], where: str, *, was_writable: bool) -> list[Any]:
    """Replies of which some are errors."""
    return [
        translate(reply, where, was_writable=was_writable)
        if isinstance(reply, DRIVER_ERRORS) and not isinstance(reply, StoreError)
        else reply
        for reply in replies
    ]


def unreadable(name: str, why: str) -> StoreError:
    """What a script that goes through many records says of one that is not ours, or of a newer leasehold."""
    return translate(redis_errors.ResponseError(why), f"redis: the record of {name!r}")


def known(outcomes: Sequence[str | StoreError]) -> Sequence[str | StoreUnavailable]:
    """The outcomes of a batch, of which some may be unknown. If all are, the reason is raised."""
    reasons = [outcome for outcome in outcomes if isinstance(outcome, StoreError)]
    if reasons and len(reasons) == len(outcomes):
        raise reasons[0]
    return [each if isinstance(each, (str, StoreUnavailable)) else StoreUnavailable(str(each)) for each in outcomes]


def is_replica(error: BaseException) -> bool:
    """Whether the server no longer takes writes: it is time to look for another."""
    return "READONLY" in text_of(error) or "read only replica" in str(error)


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


def _is_tls(error: BaseException | None) -> bool:
    seen = 0
    while error is not None and seen < 5:
        if isinstance(error, ssl.SSLError):
            return not isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError))
        if "SSL:" in str(error) and "EOF" not in str(error):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


def _reason(error: BaseException) -> str:
    text = str(error)
    start = text.find("[SSL")
    return _first_line(text[start:] if start >= 0 else text)

"""What the two MongoDB drivers share: where the collection is, how to ask pymongo, what its errors mean."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import AsyncMongoClient, MongoClient, ReadPreference, ReturnDocument, UpdateOne
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import (
    BulkWriteError,
    ConfigurationError,
    ConnectionFailure,
    DuplicateKeyError,
    InvalidName,
    InvalidURI,
    OperationFailure,
    PyMongoError,
    WriteConcernError,
)
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from ...core.log import INFO, log
from ...errors import StoreError, StoreNotReady, StoreUnavailable
from .stages import FORMAT

DATABASE = COLLECTION = "leasehold"
PUSH = ("auto", "stream", "calls", "none")
CALLS_SIZE = 1 << 20
NO_CALL = {"to": {"$not": {"$type": "array"}}}
"""Documents of a collection of calls that leasehold has not put there."""
CLOSING = 0.5
"""How long a client that is closed may take over telling the server so. It would look for a server for 30 s."""
AWAIT = 30.0
"""How long one request for calls may wait on the server for the next one: as long as a dropped collection of calls
goes unnoticed. With a look for all waiters every 5 s this makes 0.23 commands a second."""
SILENCE = 5.0
"""How much longer than that an answer may take before the connection counts as dead."""
MOST_CALLS = 32
"""In one lane of a Locks, at a time: more do not make it faster, and the pool of a client has 100 connections."""
INDEX_LIMIT = 0.5
"""How long the keeper waits for the TTL index, which nobody needs: renewals must not wait for it."""
INDEX = "leasehold_purge"

indexed: set[tuple[object, ...]] = set()
"""Collections whose TTL index this process has seen to."""


class Link(NamedTuple):
    """Where the leases are: a URL or a user's client, a database, a collection, a namespace in it."""

    url: str | None
    client: Any
    database: str
    collection: str
    namespace: str
    push: str = "auto"
    """The way that waiters are to hear calls, one of ``PUSH``."""

    def for_threads(self) -> Link:
        if isinstance(self.client, AsyncMongoClient):
            raise TypeError("an AsyncMongoClient is for leasehold.aio.connect; leasehold.connect takes a MongoClient")
        return self

    def for_tasks(self) -> Link:
        if isinstance(self.client, MongoClient):
            raise TypeError("a MongoClient is for leasehold.connect; leasehold.aio.connect takes an AsyncMongoClient")
        return self

    @property
    def where(self) -> str:
        """For messages."""
        return f"MongoDB collection {self.database}.{self.collection}"


def link_from_url(url: str, namespace: str) -> Link:
    url, collection = _take_option(url, "collection")
    url, push = _take_option(url, "push")
    if push is None:
        push = "auto"
    elif push not in PUSH:
        raise ValueError(f"bad MongoDB URL: push must be one of {', '.join(PUSH)}, not {push!r}")
    if url.startswith("mongodb+srv://"):
        # Its options come from DNS, and connect() does no I/O: they are checked at the first operation.
        path = url.partition("://")[2].partition("?")[0].partition("/")[2]
        name = COLLECTION if collection is None else collection
        return Link(url, None, unquote(path) or DATABASE, _checked(name), namespace, push)
    try:
        parsed = parse_uri(url)
    except (InvalidURI, ConfigurationError, InvalidName, ValueError, TypeError) as error:
        # The driver's words may quote the URL, and with it the password.
        reason = str(error) if "@" not in url else "percent-encode the user name and password, and check the options"
        raise ValueError(f"bad MongoDB URL: {reason}") from None
    name = collection if collection is not None else parsed["collection"] or COLLECTION
    return Link(url, None, parsed["database"] or DATABASE, _checked(name), namespace, push)


OUR_CLIENT: Mapping[str, Any] = {"appname": "leasehold", "connect": False}


def link_from_client(client: object, namespace: str) -> Link:
    match client:
        case Collection() | AsyncCollection():
            return Link(None, client.database.client, client.database.name, _checked(client.name), namespace)
        case Database() | AsyncDatabase():
            return Link(None, client.client, client.name, COLLECTION, namespace)
        case MongoClient() | AsyncMongoClient():
            database = client.get_default_database(DATABASE).name
            return Link(None, client, database, COLLECTION, namespace)
    raise TypeError(
        "connect() takes a MongoClient, AsyncMongoClient, Database or Collection of pymongo, "
        f"not {type(client).__name__}"
    )


def _take_option(url: str, option: str) -> tuple[str, str | None]:
    """The URL without an option that is ours and not the driver's, and its value."""
    base, question, query = url.partition("?")
    pairs = [pair for pair in query.split("&") if pair]
    mine = [pair for pair in pairs if pair.partition("=")[0] == option]
    rest = [pair for pair in pairs if pair not in mine]
    if not mine:
        return url, None
    value = dict(parse_qsl(mine[-1], keep_blank_values=True)).get(option, "")
    return base + (question + "&".join(rest) if rest else ""), value


def _checked(collection: str) -> str:
    if not collection or "$" in collection or "\0" in collection or collection.startswith((".", "system.")):
        raise ValueError(f"bad MongoDB URL: {collection!r} is not a valid collection name")
    if collection.endswith("."):
        raise ValueError(f"bad MongoDB URL: a collection name must not end with a dot: {collection!r}")
    return collection


class Access:
    """The collections of one Locks, through a client that is open: how to ask, without doing it."""

    def __init__(self, link: Link, client: Any) -> None:
        self.link = link
        self.client = client
        # Whatever the client's defaults are: an acknowledged lease is on a majority, and nothing is read elsewhere.
        self.database = client.get_database(
            link.database,
            codec_options=PLAIN,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority", wtimeout=5000),
        )
        self.leases = self.database[link.collection]
        # Calls are hints: one server is enough.
        self.calls = self.database.get_collection(f"{link.collection}.calls", write_concern=WriteConcern(1))

    @property
    def most_calls(self) -> int:
        """How many calls of a lane may be under way at a time. Two connections are for listener and renewals."""
        size = self.client.options.pool_options.max_pool_size
        return max(1, min(MOST_CALLS, (size - 2) // 2)) if size else MOST_CALLS

    def take_connection(self) -> bool:
        """Whether a connection of this client can be spared for a listener: one must be left for all else."""
        most = self.client.options.pool_options.max_pool_size
        with _taking:
            if most and _taken[self._key] + 2 > most:
                return False
            _taken[self._key] += 1
        return True

    def give_connection_back(self) -> None:
        with _taking:
            _taken[self._key] -= 1
            if not _taken[self._key]:
                del _taken[self._key]

    @property
    def _key(self) -> tuple[int, int]:
        return os.getpid(), id(self.client)  # clients of the same servers are equal

    @property
    def sharded(self) -> bool:
        return bool(self.client.topology_description.topology_type_name == "Sharded")

    @property
    def index_key(self) -> tuple[object, ...]:
        return (*sorted(self.client.nodes), self.link.database, self.link.collection)

    def id(self, name: str) -> dict[str, str]:
        return {"ns": self.link.namespace, "name": name}

    def filter(self, name: str, where: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The document of a name, unless its format is too new for us."""
        return {"_id": self.id(name), "format": {"$not": {"$gt": FORMAT}}, **(where or {})}

    # The commands. Of an asynchronous client they are to be awaited.

    def change(self, name: str, stages: Any, upsert: bool, where: Mapping[str, Any], waiter: str | None) -> Any:
        return self.leases.find_one_and_update(
            self.filter(name, where),
            stages,
            projection=AFTER if waiter is None else with_place(waiter),
            upsert=upsert,
            return_document=ReturnDocument.AFTER,
            collation=AS_IT_IS,
        )

    def change_many(self, changes: Any) -> Any:
        updates = [UpdateOne(self.filter(each.name, each.where), each.stages, collation=AS_IT_IS) for each in changes]
        return self.leases.bulk_write(updates, ordered=False)

    def find(self, names: Sequence[str], settled: bool) -> Any:
        leases = self.leases.with_options(read_concern=ReadConcern("majority")) if settled else self.leases
        return leases.find({"_id": {"$in": [self.id(name) for name in names]}}, **LOOK).to_list()

    def find_page(self, prefix: str, after: str, most: int) -> Any:
        first = {"$gt": self.id(after)} if after >= prefix else {"$gte": self.id(prefix)}
        names = {
            "_id": {**first, "$lt": {**self.id(prefix), "name": beyond(prefix)}},
            "_id.name": {"$type": "string"},
            "$expr": {"$eq": ["$_id", {"ns": "$_id.ns", "name": "$_id.name"}]},  # ours have no more in it
            "holders.0": {"$exists": True},
        }
        return self.leases.find(names, sort={"_id": 1}, limit=most, **LOOK).to_list()


PLAIN: CodecOptions[dict[str, Any]] = CodecOptions(
    # Others may have put dates there that are beyond all calendars; and a server that refuses a command tells it in its
    # message, cut off in the middle of a letter.
    datetime_conversion=DatetimeConversion.DATETIME_CLAMP,
    unicode_decode_error_handler="replace",
)

_taken: Counter[tuple[int, int]] = Counter()
"""How many listeners a client has, of all Locks that share it."""
_taking = threading.Lock()


def _forked() -> None:
    """Another thread may just have had it, which is not here to give it back."""
    global _taking
    _taking = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)

AS_IT_IS = {"locale": "simple"}
"""How to compare text, whatever the collection's default is."""
AFTER: Mapping[str, Any] = {
    "now": "$$NOW",
    **dict.fromkeys(("format", "token", "shape", "limit", "holders", "lapsed", "abandoned", "call", "note"), 1),
}
"""What a command tells of the document, and the server's time. Not the queue: a long one takes longer to send and to
read than all else."""
LOOK = {"projection": {**AFTER, "queue.attempt": 1, "queue.expires": 1}, "collation": AS_IT_IS}


def with_place(attempt: str) -> Mapping[str, Any]:
    """And how many wait, and the place of this one among them; -1 if it has none."""
    place = {"$indexOfArray": ["$queue.attempt", {"$literal": attempt}]}
    return {**AFTER, "waiters": {"$size": "$queue"}, "place": place}


def beyond(prefix: str) -> str | list[Any]:
    """What sorts right behind every name that starts with it."""
    while prefix:
        prefix, last = prefix[:-1], ord(prefix[-1])
        if last < 0x10FFFF:
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)  # surrogates are no text
    return []  # arrays sort after all text


def changed_of_some(error: BulkWriteError, asked: int) -> int:
    """How many documents have changed of several, though others could not be: one bad record does not fail them all.
    Raises the error where that may be about all of them."""
    details = error.details or {}
    if details.get("writeConcernErrors") or len(details.get("writeErrors", ())) >= asked:
        raise error
    return int(details.get("nModified", 0))


def new_session() -> str:
    return os.urandom(8).hex()


def is_race(error: DuplicateKeyError) -> bool:
    """Whether it was just another upsert of the same name: of ``_id`` and no other unique index."""
    pattern = (error.details or {}).get("keyPattern")
    return pattern is None or list(pattern) == ["_id"]


SHARD_BY_ID = 'give leasehold a collection of its own, sharded by {_id: "hashed"} or not sharded'

# What the server's codes mean for us. Everything else is unavailable: unknown, and worth another try.
FORBIDDEN = 13
_NOT_ALLOWED = {FORBIDDEN, 18, 33, 8000}
_TOO_OLD = {9, 59, 168, 40323, 40324, 16436, 72, 40352}
_UNSATISFIABLE = {79, 100}
_BAD_NAME = {73, 13297}


def translate(error: Exception, where: str) -> StoreError:
    """The driver's error in our terms."""
    if isinstance(error, DuplicateKeyError):
        index = (error.details or {}).get("keyPattern") or {}
        return StoreNotReady(
            f"{where}: a unique index on {', '.join(index) or 'other fields'} refuses leasehold's records: "
            "drop it, or give leasehold a collection of its own (?collection=…)"
        )
    if isinstance(error, ConnectionFailure):
        hint = "no primary can be reached" if "Primary" in str(error) or "primary" in str(error) else "no answer"
        return StoreUnavailable(f"{where}: {hint} ({_brief(error)})")
    if isinstance(error, OperationFailure):
        code = _code(error)
        if code == 18 or code == 8000:
            return StoreNotReady(
                f"{where}: authentication failed ({_brief(error)}): check user, password and authSource"
            )
        if code in _NOT_ALLOWED:
            return StoreNotReady(
                f"{where}: this user lacks a privilege ({_brief(error)}): grant find, insert, update and remove on "
                "the collection, or the role readWrite on the database"
            )
        if code in _UNSATISFIABLE:
            return StoreNotReady(f"{where}: the server cannot satisfy write concern majority ({_brief(error)})")
        if code == 121:
            return StoreNotReady(
                f"{where} has a validator that refuses leasehold's records: give leasehold a collection of its own"
            )
        if code == 166:
            return StoreNotReady(f"{where} is a view: name a collection (?collection=…)")
        if code == 323:
            return StoreNotReady(
                f"{where}: this client is strict about the stable API, which lacks a command ({_brief(error)}): "
                "run `init` and `doctor` with a client that is not strict"
            )
        if code in _BAD_NAME:
            return StoreNotReady(f"{where}: the server rejects this name ({_brief(error)}): choose another")
        if code == 61:
            return StoreNotReady(f"{where} is not sharded by `_id`: {SHARD_BY_ID}")
        if code in _TOO_OLD:
            return StoreNotReady(
                f"{where}: the server lacks a feature that leasehold needs ({_brief(error)}): use MongoDB 4.4 or newer"
            )
        if isinstance(error, (BulkWriteError, WriteConcernError)):
            return StoreUnavailable(f"{where}: not acknowledged by a majority in time ({_brief(error)})")
        return StoreUnavailable(f"{where}: {_brief(error)}")
    if isinstance(error, (ConfigurationError, InvalidURI)):
        return StoreNotReady(f"{where}: the driver rejects this URL or client ({type(error).__name__})")
    return StoreUnavailable(f"{where}: {_brief(error)}")


def _code(error: OperationFailure) -> int | None:
    """Of several commands that were sent together, of the first that was refused."""
    details = error.details or {}
    for each in (*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())):
        code: int | None = each.get("code")
        return code
    return error.code


def _brief(error: Exception) -> str:
    """The gist of the driver's message: without the dump of the topology, and of what was sent."""
    text = str(error).partition(", full error:")[0].partition(", Timeout:")[0].partition(" (configured timeouts")[0]
    return text if len(text) <= 300 else text[:300] + "…"


def tell_of_index(link: Link, error: PyMongoError, level: int) -> None:
    if isinstance(error, OperationFailure) and error.code == FORBIDDEN:
        message = "%s: this user may not check the TTL index on `purge`; no need if `leasehold init` was run"
        log(INFO, message, link.where, event="index_unchecked")
        return
    log(
        level,
        "%s: cannot create the TTL index on `purge` (%s); leases work, but records of unused names are never removed: "
        "run `leasehold init` as an administrator",
        link.where,
        _brief(error),
        event="no_index",
    )

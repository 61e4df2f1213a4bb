"""PostgreSQL's statements."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.protocol import Renewal
from ...errors import StoreNotReady
from ..common.forms import MOST
from ..sql.dialect import BELOW, DEFAULT_TABLE, SELECTED, Dialect, after_all_with
from ..sql.requests import Result, Statement
from ..sql.rows import DAY, FORMAT, NEVER, NOTE, PLACE

if TYPE_CHECKING:
    from ..common.findings import Finding
    from ..sql.doctor import Asking

# clock_timestamp() advances within a statement and a transaction; now() does not.
_CLOCK = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"
_NOW = f"(SELECT {_CLOCK} AS now) AS c"
# The same, for statements that may have to wait for a row: for this one, that ends when the caller gives up, or before.
_UNTIL = "CAST(%(until)s AS bigint)"
_PATIENCE = f"CAST(least(greatest(({_UNTIL} - now) / 1000, 1), CAST(%(patience)s AS bigint)) AS text)"
_NOW_WAIT = f"(SELECT now, set_config('lock_timeout', {_PATIENCE}, true) FROM (SELECT {_CLOCK} AS now) AS t) AS c"

_NEXT_TOKEN = "greatest(l.token + 1, excluded.token)"
_TO_TAKE = f"""INSERT INTO {{table}} AS l
    (namespace, name, format, version, token, attempt, session, owner, kind, data, state,
     acquired, expires, expires_day, created, updated)
SELECT CAST(%(namespace)s AS text), CAST(%(name)s AS text), {FORMAT}, now, now, CAST(%(attempt)s AS text),
    CAST(%(session)s AS text), CAST(%(owner)s AS text), CAST(%(kind)s AS text), CAST(%(data)s AS text), 2,
    now, now + CAST(%(ttl)s AS bigint), (now + CAST(%(ttl)s AS bigint)) / {DAY}, now, now
FROM {_NOW_WAIT} WHERE now <= {_UNTIL}
ON CONFLICT (namespace, name) DO UPDATE SET version = l.version + 1, updated = excluded.updated"""

# The same for a waiter: it joins the queue behind a holder and the waiters before it. The row shows which it was.
# (``stores/sql/rows.py`` describes ``more``: its first two parts are the shape and the limit, the last the queue.)
_TAKEN = ", ".join(
    f"{column} = CASE l.state WHEN 0 THEN excluded.{column} ELSE l.{column} END"
    for column in ("attempt", "session", "owner", "kind", "data", "acquired", "expires", "expires_day")
)
_MORE = "CAST(l.more AS jsonb)"
_PLAIN = """jsonb_build_array(CAST('lock' AS text), 1, l.token, 1, l.expires - l.acquired, 0,
            jsonb_build_array(), jsonb_build_array())"""
_WAITER = f"""jsonb_build_array(excluded.attempt, excluded.owner, excluded.kind, excluded.data, excluded.session,
            1, CAST(%(ttl)s AS bigint), 0, {_CLOCK} + {PLACE}, 0, 0, 0)"""
_JOINED = f"""CAST(jsonb_insert(coalesce({_MORE}, {_PLAIN}),
            '{{7,-1}}', {_WAITER}, true) AS text)"""

_DEAD = f"expires_day < (SELECT now / {DAY} FROM {_NOW}) - 1"


class PostgreSQL(Dialect):
    scheme = "postgresql"
    CLOCK = f"SELECT {_CLOCK}"
    quote = '"'
    MISSING = ("42P01", "3F000")
    CREATED = ("42P07", "23505", "42710", "42701", "XX000")
    LOCKED = ("55P03",)
    AGAIN = ("40001", "40P01", *LOCKED)
    UNDONE = ("22012", "22003")
    WRONG = ("42703", "42P10", "42804", "42883", "42809", "23502", "22P02", "23514", "428C9")
    DENIED = ("42501",)
    READ_ONLY = ("25006",)
    LOGIN = ("28P01", "28000", "3D000")
    LOGIN_WORDS = (
        *("authentication failed", "does not exist", "no password supplied", "no pg_hba.conf entry"),
        *("not permitted", "permission denied", "certificate", "signature failure"),
    )
    FULL = ("53300",)
    FULL_WORDS = ("too many clients", "too many connections", "connection slots are reserved", "no more connections")
    UNPREPARED = ("26000", "42P05")
    UNDOES = True

    SCHEMA = """CREATE TABLE IF NOT EXISTS {table} (
    namespace   text COLLATE "C" NOT NULL,
    name        text COLLATE "C" NOT NULL,
    format      smallint NOT NULL,
    version     bigint NOT NULL,
    token       bigint NOT NULL,
    attempt     text NOT NULL,
    session     text NOT NULL,
    owner       text NOT NULL,
    kind        text NOT NULL,
    data        text,
    state       smallint NOT NULL,
    acquired    bigint NOT NULL,
    expires     bigint NOT NULL,
    expires_day integer NOT NULL,
    more        text,
    note        text,
    created     bigint NOT NULL,
    updated     bigint NOT NULL,
    PRIMARY KEY (namespace, name)
) WITH (fillfactor = 70)"""
    INDEX = "CREATE INDEX IF NOT EXISTS {index} ON {table} (expires_day)"
    ADD_NOTE = f"ALTER TABLE {{table}} ADD COLUMN IF NOT EXISTS {NOTE} text"
    HAS_INDEX = """SELECT 1 FROM pg_index AS i
JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(%(table)s) AND a.attname = 'expires_day'"""
    TAKE = f"""{_TO_TAKE}, token = {_NEXT_TOKEN}, attempt = excluded.attempt,
    session = excluded.session, owner = excluded.owner, kind = excluded.kind, data = excluded.data, state = 2,
    acquired = excluded.acquired, expires = excluded.expires, expires_day = excluded.expires_day
WHERE l.state = 0 AND l.more IS NULL AND l.format = {FORMAT} AND {_CLOCK} <= {_UNTIL}
RETURNING token"""
    TAKE_OR_JOIN = f"""{_TO_TAKE}, {_TAKEN},
    token = CASE l.state WHEN 0 THEN {_NEXT_TOKEN} ELSE l.token END,
    more = CASE l.state WHEN 0 THEN NULL ELSE {_JOINED} END,
    state = CASE l.state WHEN 0 THEN 2 ELSE l.state END
WHERE l.format = {FORMAT} AND {_CLOCK} <= {_UNTIL} AND CASE
    WHEN l.state = 0 THEN l.more IS NULL
    WHEN l.expires <= {_CLOCK} OR l.attempt = excluded.attempt THEN false
    WHEN l.more IS NULL THEN true
    ELSE {_MORE} ->> 0 = 'lock' AND {_MORE} ->> 1 = '1' AND strpos(l.more, excluded.attempt) = 0 END
RETURNING {_CLOCK}, {SELECTED}"""
    ACCEPT = f"""UPDATE {{table}} AS l SET
    version = version + 1, state = 2, expires = greatest(expires, c.now + CAST(%(ttl)s AS bigint)),
    expires_day = greatest(expires, c.now + CAST(%(ttl)s AS bigint)) / {DAY}, updated = c.now
FROM {_NOW_WAIT}
WHERE namespace = %(namespace)s AND name = %(name)s AND attempt = %(attempt)s AND state = 1 AND expires > c.now
    AND format = {FORMAT}
RETURNING token, more IS NOT NULL"""
    FREE = f"""UPDATE {{table}} AS l SET
    version = version + 1, state = 0, attempt = '', session = '', data = NULL,
    expires = c.now, expires_day = CASE WHEN note IS NULL THEN c.now / {DAY} ELSE {NEVER} END, updated = c.now
FROM {_NOW_WAIT}
WHERE namespace = %(namespace)s AND name = %(name)s AND attempt = %(attempt)s AND token = CAST(%(token)s AS bigint)
    AND state = 2 AND more IS NULL AND expires > c.now"""
    READ = f"""SELECT c.now, {SELECTED} FROM {_NOW}
LEFT JOIN {{table}} AS l ON l.namespace = %(namespace)s AND l.name = %(name)s"""
    INSERT = f"""INSERT INTO {{table}}
    (namespace, name, format, version, token, attempt, session, owner, kind, data, state,
     acquired, expires, expires_day, more, created, updated)
SELECT CAST(%(namespace)s AS text), CAST(%(name)s AS text), {FORMAT}, now, CAST(%(token)s AS bigint),
    CAST(%(attempt)s AS text), CAST(%(session)s AS text), CAST(%(owner)s AS text), CAST(%(kind)s AS text),
    CAST(%(data)s AS text), CAST(%(state)s AS smallint), CAST(%(acquired)s AS bigint),
    coalesce(CAST(%(expires)s AS bigint), now), coalesce(CAST(%(expires)s AS bigint), now) / {DAY},
    CAST(%(more)s AS text), now, now
FROM {_NOW_WAIT} WHERE now <= {_UNTIL}
ON CONFLICT (namespace, name) DO NOTHING
RETURNING version"""
    UPDATE = f"""UPDATE {{table}} AS l SET
    format = {FORMAT}, version = version + 1, token = CAST(%(token)s AS bigint), attempt = %(attempt)s,
    session = %(session)s, owner = %(owner)s, kind = %(kind)s, data = CAST(%(data)s AS text),
    state = CAST(%(state)s AS smallint), acquired = CAST(%(acquired)s AS bigint),
    expires = coalesce(CAST(%(expires)s AS bigint), c.now),
    expires_day = CASE WHEN note IS NULL THEN coalesce(CAST(%(expires)s AS bigint), c.now) / {DAY} ELSE {NEVER} END,
    more = CAST(%(more)s AS text), updated = c.now
FROM {_NOW_WAIT}
WHERE namespace = %(namespace)s AND name = %(name)s AND version = CAST(%(version)s AS bigint)
    AND c.now <= {_UNTIL}"""
    # The notifications are sent when the swap commits, and only if a row was swapped.
    RING = f"""WITH swapped AS ({UPDATE} RETURNING 1)
SELECT pg_notify(r.channel, r.attempt)
FROM swapped, unnest(CAST(%(channels)s AS text[]), CAST(%(attempts)s AS text[])) AS r(channel, attempt)"""
    READ_ALL = f"""SELECT l.name, c.now, {SELECTED} FROM {_NOW}
LEFT JOIN {{table}} AS l ON l.namespace = %(namespace)s AND l.name = ANY (CAST(%(names)s AS text[]))"""
    # All rows or none: where one is not as it was read, the division by zero undoes the others.
    EXCHANGE_ALL = f"""WITH b AS (
    SELECT * FROM json_to_recordset(CAST(%(rows)s AS json)) AS r(name text COLLATE "C", version bigint, token bigint,
        attempt text, session text, owner text, kind text, data text, state smallint, acquired bigint, expires bigint,
        more text)
), swapped AS (
    INSERT INTO {{table}} AS l
        (namespace, name, format, version, token, attempt, session, owner, kind, data, state,
         acquired, expires, expires_day, more, created, updated)
    SELECT CAST(%(namespace)s AS text), name, {FORMAT}, now, token, attempt, session, owner, kind, data, state,
        acquired, expires, expires / {DAY}, more, now, now
    FROM {_NOW_WAIT}, b WHERE now <= {_UNTIL} ORDER BY name
    ON CONFLICT (namespace, name) DO UPDATE SET
        format = {FORMAT}, version = l.version + 1, token = excluded.token, attempt = excluded.attempt,
        session = excluded.session, owner = excluded.owner, kind = excluded.kind, data = excluded.data,
        state = excluded.state, acquired = excluded.acquired, expires = excluded.expires,
        expires_day = CASE WHEN l.note IS NULL THEN excluded.expires_day ELSE {NEVER} END,
        more = excluded.more, updated = excluded.updated
    WHERE l.version = (SELECT b.version FROM b WHERE b.name = excluded.name) AND {_CLOCK} <= {_UNTIL}
    RETURNING 1
)
SELECT 1 / CAST(count(*) = (SELECT count(*) FROM b) AS integer) FROM swapped"""
    # That the name is one of these is said twice. Of a table without statistics the server expects one row of a
    # namespace, and compared each of 30,000 with all 200 of a batch, for seconds. So it sorts out the others first.
    EXTEND = f"""UPDATE {{table}} AS l SET
    version = l.version + 1, expires = greatest(l.expires, c.now + b.ttl),
    expires_day = greatest(l.expires, c.now + b.ttl) / {DAY}, updated = c.now
FROM {_NOW_WAIT}, unnest(CAST(%(names)s AS text[]), CAST(%(attempts)s AS text[]), CAST(%(tokens)s AS bigint[]),
    CAST(%(ttls)s AS bigint[])) AS b(name, attempt, token, ttl)
WHERE l.namespace = %(namespace)s AND l.name = b.name AND l.attempt = b.attempt AND l.token = b.token
    AND l.state = 2 AND l.expires > c.now AND l.format = {FORMAT}
    AND l.name = ANY (CAST(%(names)s AS text[]))
RETURNING l.name, l.attempt, l.token"""
    UNLOCKED = """SELECT name FROM {table} WHERE namespace = %(namespace)s AND name = ANY (CAST(%(names)s AS text[]))
FOR NO KEY UPDATE SKIP LOCKED"""
    PAGE = f"""SELECT l.name, c.now, {SELECTED} FROM {_NOW}, {{table}} AS l
WHERE l.namespace = %(namespace)s AND l.name > %(after)s AND l.name >= %(prefix)s{BELOW}
    AND left(l.name, CAST(%(length)s AS integer)) = %(prefix)s AND (l.state <> 0 OR l.more IS NOT NULL)
ORDER BY l.name LIMIT CAST(%(most)s AS integer)"""
    CHECK_HELD = f"""SELECT token FROM {{table}} AS l, {_NOW}
WHERE namespace = %(namespace)s AND name = %(name)s AND attempt = %(attempt)s AND token = CAST(%(token)s AS bigint)
    AND state IN (1, 2) AND expires > c.now AND format = {FORMAT}
FOR SHARE OF l"""
    SNAPSHOT = """SELECT current_setting('transaction_isolation'), l.token, l.attempt, l.state FROM (SELECT 1) AS c
LEFT JOIN {table} AS l ON l.namespace = %(namespace)s AND l.name = %(name)s"""
    CAN_HOLD = f"""SELECT l.more IS NULL AND l.format = {FORMAT} AND (l.state = 0 OR l.expires <= c.now)
FROM {_NOW}, {{table}} AS l WHERE l.namespace = %(namespace)s AND l.name = %(name)s"""
    HOLD = f"""INSERT INTO {{table}} AS l
    (namespace, name, format, version, token, attempt, session, owner, kind, state,
     acquired, expires, expires_day, created, updated)
SELECT CAST(%(namespace)s AS text), CAST(%(name)s AS text), {FORMAT}, now, now, '', '', CAST(%(owner)s AS text),
    CAST(%(kind)s AS text), 0, now, now, now / {DAY}, now, now
FROM {_NOW}
ON CONFLICT (namespace, name) DO UPDATE SET
    version = l.version + 1, token = {_NEXT_TOKEN}, attempt = '', session = '',
    owner = excluded.owner, kind = excluded.kind, data = NULL, state = 0, acquired = excluded.acquired,
    expires = excluded.expires, expires_day = excluded.expires_day, updated = excluded.updated
WHERE l.more IS NULL AND l.format = {FORMAT} AND (l.state = 0 OR l.expires <= excluded.acquired)
RETURNING token"""
    READ_NOTE = "SELECT format, note FROM {table} WHERE namespace = %(namespace)s AND name = %(name)s"
    WRITE_NOTE = f"""UPDATE {{table}} SET note = CAST(%(note)s AS text), version = version + 1, updated = c.now,
    expires_day = CASE WHEN CAST(%(note)s AS text) IS NULL THEN expires / {DAY} ELSE {NEVER} END
FROM {_NOW_WAIT} WHERE namespace = %(namespace)s AND name = %(name)s AND version = CAST(%(version)s AS bigint)"""
    # What was damaged is free, and keeps its note. A token that cannot have been one of ours is not gone on from.
    MEND = f"""UPDATE {{table}} AS l SET
    format = {FORMAT}, version = c.now, token = CASE WHEN token BETWEEN 0 AND {MOST - 1} THEN token ELSE 0 END,
    attempt = '', session = '', owner = '', kind = '', data = NULL, state = 0, acquired = 0, expires = c.now,
    expires_day = CASE WHEN note IS NULL THEN c.now / {DAY} ELSE {NEVER} END, more = NULL, updated = c.now
FROM {_NOW_WAIT}
WHERE namespace = %(namespace)s AND name = %(name)s AND format <= {FORMAT} AND c.now <= {_UNTIL}"""
    PURGE = f"""DELETE FROM {{table}} WHERE (namespace, name) IN (
    SELECT namespace, name FROM {{table}} WHERE {_DEAD} AND more IS NULL AND note IS NULL
    ORDER BY expires_day LIMIT 1000 FOR UPDATE SKIP LOCKED) AND {_DEAD} AND more IS NULL AND note IS NULL"""
    LEFTOVERS = f"""SELECT name FROM {{table}} WHERE {_DEAD} AND more IS NOT NULL
    AND namespace = %(namespace)s AND name > %(name)s LIMIT 100"""
    # to_regclass sees what was made since the statement began, the catalogue's tables do not. Whether ours is there has
    # to be asked of these, as its columns are: one that another makes just now would be there without any.
    CHECK = f"""SELECT {_CLOCK}, CAST(current_setting('server_version_num') AS integer),
    current_setting('server_encoding'), pg_is_in_recovery(), current_setting('transaction_read_only'),
    EXISTS (SELECT FROM pg_class WHERE oid = to_regclass(%(table)s)),
    (SELECT string_agg(a.attname, ',' ORDER BY array_position(i.indkey::int2[], a.attnum))
        FROM pg_index AS i JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = to_regclass(%(table)s) AND i.indisprimary),
    (SELECT string_agg(attname, ',') FROM pg_attribute
        WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped)"""

    def __init__(self, table: str = DEFAULT_TABLE) -> None:
        super().__init__(table)
        self.INDEX = self.INDEX.replace("{index}", f'"{self.table.rpartition(".")[2]}_expires_day"')

    def schema(self) -> Sequence[str]:
        return self.SCHEMA, self.INDEX

    def has_index(self) -> Statement:
        return Statement(self.HAS_INDEX, {"table": self.quoted})

    def findings(self, ask: Asking) -> Iterator[Finding]:
        from .doctor import findings

        return findings(ask)

    def check(self) -> Statement:
        return Statement(self.CHECK, {"table": self.quoted})

    def lacking(self, result: Result) -> Sequence[str]:
        _, version, encoding, recovery, reads, there, key, columns = result.rows[0]
        if version < 120000:
            raise self.too_old(f"PostgreSQL {version // 10000}", "12")
        if recovery:
            raise self.read_only("it is a standby")
        if reads == "on":
            raise self.read_only("default_transaction_read_only is on")
        if encoding != "UTF8":
            raise StoreNotReady(f"the database's encoding is {encoding}: names can be any text, so it must be UTF8")
        return self.lacking_columns(key or "", columns or "") if there else self.schema()

    def timed(self, statement: Statement, until: int, patience: float | None) -> Statement:
        if "%(until)s" not in statement.sql:
            return statement
        most = max(1, int(1000 * (60 if patience is None else patience)))
        return Statement(statement.sql, {**statement.values, "until": until, "patience": most})

    def key(self, namespace: str, name: str) -> dict[str, Any]:
        return {"namespace": namespace, "name": name}

    def text(self, name: Any) -> str:
        return str(name)

    def taken(self, result: Result) -> int:
        return int(result.rows[0][0]) if result.rows else 0

    def taken_or_joined(self, attempt: str, result: Result) -> int | Sequence[Any]:
        if not result.rows:
            return 0
        _, _, _, token, holder, *_ = result.rows[0]
        return int(token) if holder == attempt else result.rows[0]

    def accepted(self, result: Result) -> tuple[int, bool]:
        token, others = result.rows[0] if result.rows else (0, False)
        return int(token), bool(others)

    def exchange(self, values: dict[str, Any], rings: Sequence[tuple[str, str]]) -> Statement:
        if not rings:
            return Statement(self.UPDATE, values)
        channels = [channel(session) for session, _ in rings]
        return Statement(self.RING, {**values, "channels": channels, "attempts": [attempt for _, attempt in rings]})

    def without_notify(self, statement: Statement) -> Statement | None:
        if statement.sql != self.RING:
            return None
        rings = ("channels", "attempts")
        return Statement(self.UPDATE, {key: value for key, value in statement.values.items() if key not in rings})

    def about(self, sql: str, namespace: str, names: Sequence[str]) -> Statement:
        return Statement(sql, {"namespace": namespace, "names": list(names)})

    def exchange_all(self, namespace: str, rows: Sequence[Mapping[str, Any]]) -> Statement:
        return Statement(self.EXCHANGE_ALL, {"namespace": namespace, "rows": json.dumps(rows)})

    def extend(self, namespace: str, batch: Sequence[Renewal]) -> Statement:
        values = {
            "namespace": namespace,
            "names": [each.name for each in batch],
            "attempts": [each.attempt for each in batch],
            "tokens": [each.token for each in batch],
            "ttls": [each.ttl for each in batch],
        }
        return Statement(self.EXTEND, values)

    def extended(self, batch: Sequence[Renewal], result: Result) -> tuple[Collection[Sequence[Any]], int]:
        return {tuple(row) for row in result.rows}, 0

    def page(self, namespace: str, prefix: str, after: str, most: int) -> Statement:
        values = {"namespace": namespace, "prefix": prefix, "length": len(prefix), "after": after, "most": most}
        if before := after_all_with(prefix):
            return Statement(self.PAGE, {**values, "before": before})
        return Statement(self.PAGE.replace(BELOW, ""), values)


def channel(session: str) -> str:
    """The channel on which a session listens."""
    return f"leasehold_{session}"

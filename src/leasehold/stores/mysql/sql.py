"""The statements of MySQL and MariaDB, which are the same: no RETURNING, which only MariaDB has.

A token comes back through LAST_INSERT_ID(expression), which the server sends along with every answer. After ON
DUPLICATE KEY, assignments are made from left to right and see each other, so what the conditions look at is assigned
last. In an UPDATE none depends on another: MariaDB's sql_mode SIMULTANEOUS_ASSIGNMENT makes them all at once. Names are
sent in hex: bytes that no connection's character set, and no driver's way of quoting bytes, can change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...core.protocol import Renewal
from ...errors import StoreNotReady
from ..common.forms import MOST
from ..sql.dialect import BELOW, DEFAULT_TABLE, SELECTED, Dialect, after_all_with
from ..sql.requests import Hint, Result, Statement
from ..sql.rows import ALL_COLUMNS, DAY, FORMAT, NEVER, NOTE, PLACE

if TYPE_CHECKING:
    from ..common.findings import Finding
    from ..sql.doctor import Asking

SUBQUERY_NO_1_ROW = 1242
LOCK_WAIT = 1
"""Seconds that a statement of ours waits for a row, before it is sent again: MySQL knows no less."""

# Constant within a statement. NOW() and UNIX_TIMESTAMP() follow the session's time zone, and jump with it.
_NOW = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

# True, or an error (SUBQUERY_NO_1_ROW): administrators may write although the server is read-only. A replica that
# repeats a source's statements must pass: MariaDB gives that session the source's number, MySQL gives it a GTID.
_WRITES = """IF(CAST(@@global.read_only AS CHAR) IN ('0', 'OFF') /*M! OR @@session.server_id <> @@global.server_id */
    /*!80000 OR @@session.gtid_next <> 'AUTOMATIC' */, 1, (SELECT 1 UNION SELECT 2))"""

# What may grant something does so only as long as the caller waits for the answer.
_IN_TIME = f"{_NOW} <= %(until)s AND {_WRITES}"

_FREE_NOW = f"state = 0 AND more IS NULL AND format = {FORMAT}"
_INTO = """INSERT INTO {table}
    (namespace, name, format, version, token, attempt, session, owner, kind, data, state,
     acquired, expires, expires_day, more, created, updated)"""

# A waiter joins the queue behind a holder and the waiters before it. The row shows whether it did, not the answer.
# (``stores/sql/rows.py`` describes ``more``: its first two parts are the shape and the limit, the last the queue.)
_IS_LOCK = """IF(JSON_VALID(more), JSON_UNQUOTE(JSON_EXTRACT(more, '$[0]')) = 'lock' AND JSON_EXTRACT(more, '$[1]') = 1
        AND JSON_TYPE(JSON_EXTRACT(more, '$[7]')) = 'ARRAY' AND LOCATE(%(attempt)s, more) = 0
        AND LENGTH(more) < @@max_allowed_packet DIV 2, 0)"""
_JOINS = f"""(state <> 0 AND expires > {_NOW} AND attempt <> %(attempt)s AND format = {FORMAT}
    AND COALESCE(more IS NULL OR {_IS_LOCK}, 0))"""
_PLAIN = "JSON_ARRAY('lock', 1, token, 1, expires - acquired, 0, JSON_ARRAY(), JSON_ARRAY())"
_JOINED = f"""JSON_ARRAY_APPEND(COALESCE(more, {_PLAIN}), '$[7]', JSON_ARRAY(
        %(attempt)s, %(owner)s, %(kind)s, %(data)s, %(session)s, 1, %(ttl)s, 0, {_NOW} + {PLACE}, 0, 0, 0))"""


_TO_TAKE = f"""{_INTO}
SELECT UNHEX(%(namespace)s), UNHEX(%(name)s), {FORMAT}, {_NOW}, LAST_INSERT_ID({_NOW}), %(attempt)s, %(session)s,
    %(owner)s, %(kind)s, %(data)s, 2, {_NOW}, {_NOW} + %(ttl)s, ({_NOW} + %(ttl)s) DIV {DAY}, NULL, {_NOW}, {_NOW}
FROM DUAL WHERE {_IN_TIME}
ON DUPLICATE KEY UPDATE
    token = IF({_FREE_NOW}, LAST_INSERT_ID(GREATEST(token + 1, {_NOW})), token + LAST_INSERT_ID(0)),
    version = version + ({_FREE_NOW}{{or_joins}}),
    attempt = IF({_FREE_NOW}, %(attempt)s, attempt),
    session = IF({_FREE_NOW}, %(session)s, session),
    owner = IF({_FREE_NOW}, %(owner)s, owner),
    kind = IF({_FREE_NOW}, %(kind)s, kind),
    data = IF({_FREE_NOW}, %(data)s, data),
    acquired = IF({_FREE_NOW}, {_NOW}, acquired),
    expires = IF({_FREE_NOW}, {_NOW} + %(ttl)s, expires),
    expires_day = IF({_FREE_NOW}, ({_NOW} + %(ttl)s) DIV {DAY}, expires_day),
    updated = IF({_FREE_NOW}{{or_joins}}, {_NOW}, updated),{{joined}}
    state = IF({_FREE_NOW}, 2, state)"""

_AT_ONCE = "SET STATEMENT innodb_lock_wait_timeout = 0 FOR "

_BELOW = BELOW.replace("%(before)s", "UNHEX(%(before)s)")


_CAN_HOLD = f"more IS NULL AND format = {FORMAT} AND (state = 0 OR expires <= {_NOW})"


_DEAD = f"expires_day < {_NOW} DIV {DAY} - 1"

# innodb_read_only: readers of Aurora.
_READS = "@@global.read_only, @@global.innodb_read_only"


class MySQL(Dialect):
    quote = "`"
    CLOCK = f"SELECT {_NOW}"
    MISSING = (1146,)
    CREATED = (1050, 1060, 1061)
    LOCKED = (1205, 3572)  # the last is MySQL's, of NOWAIT
    AGAIN = (1213, 1205, 1020)  # the last is MariaDB's innodb_snapshot_isolation
    UNDONE = (1690,)
    WRONG = (1054, 1136, 1364, 1366, 1406, 1265, 1264, 1048, 1292)
    DENIED = (1142, 1143, 1044, 1227, 1370)
    READ_ONLY = (1290, 1792, 1836, 3100, SUBQUERY_NO_1_ROW)
    READS = f"SELECT {_READS}"
    LOGIN_WORDS = ("SSL is required",)
    FULL = (1040, 1203, 1226)
    LOGIN = (1043, 1045, 1698, 1049, 1251, 1130, 2059, 1524)

    SCHEMA = """CREATE TABLE IF NOT EXISTS {table} (
    namespace   VARBINARY(256) NOT NULL,
    name        VARBINARY(2048) NOT NULL,
    format      SMALLINT NOT NULL,
    version     BIGINT NOT NULL,
    token       BIGINT NOT NULL,
    attempt     VARCHAR(64) NOT NULL,
    session     VARCHAR(64) NOT NULL,
    owner       VARCHAR(256) NOT NULL,
    kind        VARCHAR(64) NOT NULL,
    data        TEXT,
    state       SMALLINT NOT NULL,
    acquired    BIGINT NOT NULL,
    expires     BIGINT NOT NULL,
    expires_day INT NOT NULL,
    more        MEDIUMTEXT,
    note        MEDIUMTEXT,
    created     BIGINT NOT NULL,
    updated     BIGINT NOT NULL,
    PRIMARY KEY (namespace, name),
    KEY expires_day (expires_day)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"""
    TAKE = _TO_TAKE.replace("{or_joins}", "").replace("{joined}", "")
    # A queue of half max_allowed_packet is not joined: whoever swaps the row sends all of it, with its quotes escaped.
    TAKE_OR_JOIN = _TO_TAKE.replace("{or_joins}", f" OR {_JOINS}").replace(
        "{joined}", f" more = IF({_JOINS}, COALESCE({_JOINED}, more), more),"
    )
    ADD_NOTE = f"ALTER TABLE {{table}} ADD COLUMN {NOTE} MEDIUMTEXT"
    INDEX = "CREATE INDEX expires_day ON {table} (expires_day)"
    HAS_INDEX = """SELECT 1 FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = {schema} AND TABLE_NAME = %(table)s AND COLUMN_NAME = 'expires_day' AND SEQ_IN_INDEX = 1"""
    ACCEPT = f"""UPDATE {{table}} SET
    version = version + 1, token = LAST_INSERT_ID(2 * token + (more IS NOT NULL)) DIV 2, state = 2,
    expires_day = GREATEST(expires, {_NOW} + %(ttl)s) DIV {DAY}, expires = GREATEST(expires, {_NOW} + %(ttl)s),
    updated = {_NOW}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND attempt = %(attempt)s AND state = 1
    AND expires > {_NOW} AND format = {FORMAT} AND {_WRITES}"""
    FREE = f"""UPDATE {{table}} SET
    version = version + 1, state = 0, attempt = '', session = '', data = NULL,
    expires = {_NOW}, expires_day = IF(note IS NULL, {_NOW} DIV {DAY}, {NEVER}), updated = {_NOW}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND attempt = %(attempt)s AND token = %(token)s
    AND state = 2 AND more IS NULL AND expires > {_NOW}"""
    READ = f"""SELECT {_NOW}, {SELECTED} FROM (SELECT 1) AS c
LEFT JOIN {{table}} AS l ON l.namespace = UNHEX(%(namespace)s) AND l.name = UNHEX(%(name)s)"""
    INSERT = f"""{_INTO}
SELECT UNHEX(%(namespace)s), UNHEX(%(name)s), {FORMAT}, LAST_INSERT_ID({_NOW}), %(token)s, %(attempt)s, %(session)s,
    %(owner)s, %(kind)s, %(data)s, %(state)s, %(acquired)s, COALESCE(%(expires)s, {_NOW}),
    COALESCE(%(expires)s, {_NOW}) DIV {DAY}, %(more)s, {_NOW}, {_NOW}
FROM DUAL WHERE {_IN_TIME}
ON DUPLICATE KEY UPDATE version = version + LAST_INSERT_ID(0)"""
    UPDATE = f"""UPDATE {{table}} SET
    format = {FORMAT}, version = version + 1, token = %(token)s, attempt = %(attempt)s, session = %(session)s,
    owner = %(owner)s, kind = %(kind)s, data = %(data)s, state = %(state)s, acquired = %(acquired)s,
    expires = COALESCE(%(expires)s, {_NOW}),
    expires_day = IF(note IS NULL, COALESCE(%(expires)s, {_NOW}) DIV {DAY}, {NEVER}),
    more = %(more)s, updated = {_NOW}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND version = %(version)s
    AND {_IN_TIME}"""
    READ_ALL = f"""SELECT l.name, {_NOW}, {SELECTED} FROM (SELECT 1) AS c
LEFT JOIN {{table}} AS l ON l.namespace = UNHEX(%(namespace)s) AND l.name IN ({{names}})"""
    # All rows or none: where one is not as it was read, its version is too much for a BIGINT, which undoes the others.
    EXCHANGE_ALL = f"""{_INTO}
SELECT UNHEX(%(namespace)s), UNHEX(b.name), {FORMAT}, {_NOW}, b.token, b.attempt, b.session, b.owner, b.kind, b.data,
    b.state, b.acquired, b.expires, b.expires DIV {DAY}, b.more, {_NOW}, {_NOW}
FROM ({{rows}}) AS b WHERE {_IN_TIME}
ON DUPLICATE KEY UPDATE
    version = {{table}}.version + IF({{table}}.version = b.version, 1, {2**63 - 1}), format = {FORMAT},
    token = b.token, attempt = b.attempt, session = b.session, owner = b.owner, kind = b.kind, data = b.data,
    state = b.state, acquired = b.acquired, expires = b.expires,
    expires_day = IF(note IS NULL, b.expires DIV {DAY}, {NEVER}), more = b.more, updated = {_NOW}"""
    EXTEND = f"""UPDATE {{table}} SET
    version = version + 1, expires_day = GREATEST(expires, {_NOW} + CASE attempt {{terms}} END) DIV {DAY},
    expires = GREATEST(expires, {_NOW} + CASE attempt {{terms}} END), updated = LAST_INSERT_ID({_NOW})
WHERE namespace = UNHEX(%(namespace)s) AND name IN ({{names}}) AND ({{which}})
    AND state = 2 AND expires > {_NOW} AND format = {FORMAT} AND {_WRITES}"""
    UNLOCKED = """SELECT name FROM {table} WHERE namespace = UNHEX(%(namespace)s) AND name IN ({names})
FOR UPDATE SKIP LOCKED"""
    PROBE = """SELECT 1 FROM {table} WHERE namespace = UNHEX(%(namespace)s) AND name IN ({names}) FOR UPDATE NOWAIT"""
    PAGE = f"""SELECT l.name, {_NOW}, {SELECTED} FROM {{table}} AS l
WHERE l.namespace = UNHEX(%(namespace)s) AND l.name > UNHEX(%(after)s) AND l.name >= UNHEX(%(prefix)s){_BELOW}
    AND LEFT(l.name, %(length)s) = UNHEX(%(prefix)s) AND (l.state <> 0 OR l.more IS NOT NULL)
ORDER BY l.name LIMIT {{most}}"""
    # What MySQL writes FOR SHARE today, in the words that MariaDB knows too.
    CHECK_HELD = f"""SELECT token FROM {{table}}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND attempt = %(attempt)s AND token = %(token)s
    AND state IN (1, 2) AND expires > {_NOW} AND format = {FORMAT}
LOCK IN SHARE MODE"""
    CAN_HOLD = f"""SELECT {_CAN_HOLD} FROM {{table}}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s)"""
    HOLD = f"""{_INTO}
VALUES (UNHEX(%(namespace)s), UNHEX(%(name)s), {FORMAT}, {_NOW}, LAST_INSERT_ID({_NOW}), '', '', %(owner)s, %(kind)s,
    NULL, 0, {_NOW}, {_NOW}, {_NOW} DIV {DAY}, NULL, {_NOW}, {_NOW})
ON DUPLICATE KEY UPDATE
    token = IF({_CAN_HOLD}, LAST_INSERT_ID(GREATEST(token + 1, {_NOW})), token + LAST_INSERT_ID(0)),
    version = IF({_CAN_HOLD}, version + 1, version),
    attempt = IF({_CAN_HOLD}, '', attempt),
    session = IF({_CAN_HOLD}, '', session),
    owner = IF({_CAN_HOLD}, %(owner)s, owner),
    kind = IF({_CAN_HOLD}, %(kind)s, kind),
    data = IF({_CAN_HOLD}, NULL, data),
    acquired = IF({_CAN_HOLD}, {_NOW}, acquired),
    expires_day = IF({_CAN_HOLD}, {_NOW} DIV {DAY}, expires_day),
    updated = IF({_CAN_HOLD}, {_NOW}, updated),
    state = IF({_CAN_HOLD}, 0, state),
    expires = IF(more IS NULL AND format = {FORMAT} AND state = 0, {_NOW}, expires)"""
    READ_NOTE = """SELECT format, note FROM {table}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s)"""
    WRITE_NOTE = f"""UPDATE {{table}} SET note = %(note)s, version = version + 1, updated = {_NOW},
    expires_day = IF(%(note)s IS NULL, expires DIV {DAY}, {NEVER})
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND version = %(version)s AND {_WRITES}"""
    # What was damaged is free, and keeps its note. A token that cannot have been one of ours is not gone on from.
    MEND = f"""UPDATE {{table}} SET
    format = {FORMAT}, version = {_NOW}, token = IF(token BETWEEN 0 AND {MOST - 1}, token, 0),
    attempt = '', session = '', owner = '', kind = '', data = NULL, state = 0, acquired = 0, expires = {_NOW},
    expires_day = IF(note IS NULL, {_NOW} DIV {DAY}, {NEVER}), more = NULL, updated = {_NOW}
WHERE namespace = UNHEX(%(namespace)s) AND name = UNHEX(%(name)s) AND format <= {FORMAT} AND {_IN_TIME}"""
    PURGE = f"DELETE FROM {{table}} WHERE {_DEAD} AND more IS NULL AND note IS NULL ORDER BY expires_day LIMIT 1000"
    LEFTOVERS = f"""SELECT name FROM {{table}} WHERE {_DEAD} AND more IS NOT NULL
    AND namespace = UNHEX(%(namespace)s) AND name > UNHEX(%(name)s) LIMIT 100"""
    CHECK = f"""SELECT {_NOW}, VERSION(), {_READS},
    (SELECT ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = {{schema}} AND TABLE_NAME = %(table)s),
    (SELECT GROUP_CONCAT(COLUMN_NAME ORDER BY SEQ_IN_INDEX) FROM information_schema.STATISTICS
        WHERE TABLE_SCHEMA = {{schema}} AND TABLE_NAME = %(table)s AND INDEX_NAME = 'PRIMARY'),
    (SELECT GROUP_CONCAT(DATA_TYPE ORDER BY COLUMN_NAME) FROM information_schema.COLUMNS
        WHERE TABLE_SCHEMA = {{schema}} AND TABLE_NAME = %(table)s AND COLUMN_NAME IN ('name', 'namespace')),
    (SELECT GROUP_CONCAT(COLUMN_NAME) FROM information_schema.COLUMNS
        WHERE TABLE_SCHEMA = {{schema}} AND TABLE_NAME = %(table)s AND COLUMN_NAME IN {ALL_COLUMNS})"""

    def __init__(self, table: str = DEFAULT_TABLE, scheme: str = "mysql") -> None:
        super().__init__(table)
        self.scheme = scheme
        self._skips = True
        """MariaDB has SKIP LOCKED since 10.6."""
        self._is_mariadb = False
        """Only MariaDB can have a statement that does not wait for a row, whatever its session says."""

    def schema(self) -> Sequence[str]:
        return (self.SCHEMA,)

    def has_index(self) -> Statement:
        return self._about_the_table(self.HAS_INDEX)

    def findings(self, ask: Asking) -> Iterator[Finding]:
        from .doctor import findings

        return findings(ask)

    def check(self) -> Statement:
        return self._about_the_table(self.CHECK)

    def _about_the_table(self, sql: str) -> Statement:
        schema, _, table = self.table.rpartition(".")
        where = "%(schema)s" if schema else "DATABASE()"
        return Statement(sql.replace("{schema}", where), {"schema": schema, "table": table})

    def lacking(self, result: Result) -> Sequence[str]:
        _, version, reads, innodb_reads, engine, key, types, columns = result.rows[0]
        version = _words(version)
        oldest = (10, 5) if "mariadb" in version else (8, 0)
        if tuple(map(int, version.split("-")[0].split(".")[:2])) < oldest:
            raise self.too_old(version, f"{'MariaDB' if oldest[0] == 10 else 'MySQL'} {oldest[0]}.{oldest[1]}")
        self._skips = not version.startswith("10.5.")
        self._is_mariadb = "mariadb" in version
        self.check_writes(reads, innodb_reads)
        if engine is None:
            return self.schema()
        if engine != "InnoDB":
            raise StoreNotReady(f"the table {self.table} uses engine {engine}: leases need InnoDB")
        lacking = self.lacking_columns(_words(key), _words(columns))
        if _words(types) != "varbinary,varbinary":
            raise self.wrong_table(f"the columns namespace and name must be varbinary, not {_words(types)}")
        return lacking

    def check_writes(self, reads: Any, innodb_reads: Any) -> None:
        """What the server has said to ``READS``. MariaDB says it in words since 12.0, of which several are not OFF."""
        for setting, value in (("read_only", reads), ("innodb_read_only", innodb_reads)):
            if _words(value) not in ("", "0", "off"):
                raise self.read_only(f"{setting} is on; is it a replica?")

    def timed(self, statement: Statement, until: int, patience: float | None) -> Statement:
        statement = super().timed(statement, until, patience)
        if patience is not None and patience < LOCK_WAIT and self._is_mariadb:
            return Statement(_AT_ONCE + statement.sql, statement.values)
        return statement

    def waits_longer(self, patience: float) -> bool:
        return patience < LOCK_WAIT and not self._is_mariadb

    def probe(self, namespace: str, names: Sequence[str]) -> Statement | None:
        """InnoDB locks the space between rows too: a purge may be in the way of a new name."""
        return self.about(self.PROBE, namespace, names)

    def key(self, namespace: str, name: str) -> dict[str, Any]:
        return {"namespace": hexed(namespace), "name": hexed(name)}

    def text(self, name: Any) -> str:
        return bytes(name).decode(errors="surrogateescape")

    def taken(self, result: Result) -> int:
        return result.last_id if result.touched else 0

    def accepted(self, result: Result) -> tuple[int, bool]:
        token, others = divmod(result.last_id if result.touched else 0, 2)
        return token, bool(others)

    def exchange_all(self, namespace: str, rows: Sequence[Mapping[str, Any]]) -> Statement:
        values: dict[str, Any] = {"namespace": hexed(namespace)}
        selects = []
        for at, row in enumerate(rows):
            facts = {**row, "name": hexed(row["name"])}
            values |= {f"{column}{at}": value for column, value in facts.items()}
            selects.append("SELECT " + ", ".join(f"%({column}{at})s AS {column}" for column in facts))
        return Statement(self.EXCHANGE_ALL.replace("{rows}", " UNION ALL ".join(selects)), values)

    def extend(self, namespace: str, batch: Sequence[Renewal]) -> Statement:
        values: dict[str, Any] = {"namespace": hexed(namespace)}
        names, terms, which = [], [], []
        for at, each in enumerate(batch):
            values |= {f"n{at}": hexed(each.name), f"a{at}": each.attempt, f"t{at}": each.token, f"d{at}": each.ttl}
            names.append(f"UNHEX(%(n{at})s)")
            terms.append(f"WHEN %(a{at})s THEN %(d{at})s")
            which.append(f"name = UNHEX(%(n{at})s) AND attempt = %(a{at})s AND token = %(t{at})s")
        sql = self.EXTEND.replace("{names}", ", ".join(names)).replace("{terms}", " ".join(terms))
        return Statement(sql.replace("{which}", " OR ".join(which)), values)

    def extended(self, batch: Sequence[Renewal], result: Result) -> tuple[Collection[Sequence[Any]], int]:
        """The server returns only how many were renewed. If some were not, their rows have to be read."""
        done = {each[:3] for each in batch} if result.touched == len(batch) else ()
        return done, result.last_id if result.touched else 0

    def about(self, sql: str, namespace: str, names: Sequence[str]) -> Statement:
        if not self._skips:
            sql = sql.replace("FOR UPDATE SKIP LOCKED", "")
        values: dict[str, Any] = {f"n{at}": hexed(name) for at, name in enumerate(names)}
        places = ", ".join(f"UNHEX(%({key})s)" for key in values)
        values["namespace"] = hexed(namespace)
        return Statement(sql.replace("{names}", places), values)

    def page(self, namespace: str, prefix: str, after: str, most: int) -> Statement:
        values: dict[str, Any] = {"namespace": hexed(namespace), "prefix": hexed(prefix), "after": hexed(after)}
        values["length"] = len(prefix.encode())
        sql = self.PAGE.replace("{most}", str(int(most)))
        if before := after_all_with(prefix):
            return Statement(sql, {**values, "before": hexed(before)})
        return Statement(sql.replace(_BELOW, ""), values)

    # Wake-ups: see :mod:`.listener`.

    def wake_sleeping(self, session: str) -> Statement | None:
        # A hint: a server that is slow to end another's sleep (MariaDB's SLEEP() could take two seconds) must not hold
        # up who has been granted something, or that would be over by then.
        return Hint("KILL QUERY IS_USED_LOCK(%(asleep)s)", {"asleep": sleep_lock(session)})

    def find_listener(self, session: str) -> Statement | None:
        values = {"lock": listener_lock(session), "asleep": sleep_lock(session)}
        return Statement("SELECT IS_USED_LOCK(%(lock)s), IS_USED_LOCK(%(asleep)s)", values)

    def found_listener(self, result: Result) -> tuple[Statement | None, bool]:
        number, sleeps = result.rows[0]
        if number is None:
            return None, False  # it does not listen
        return Hint(f"KILL QUERY {int(number)}", {}), sleeps is None


def listener_lock(session: str) -> str:
    """The name of the lock by which the connection that a session listens on is found."""
    return f"leasehold_{session}"


def sleep_lock(session: str) -> str:
    """The name of the lock that this connection has while it sleeps."""
    return f"leasehold_{session}_z"


def hexed(text: str) -> str:
    return text.encode(errors="surrogateescape").hex()  # names of others may be any bytes


def _words(value: Any) -> str:
    text = value.decode() if isinstance(value, bytes) else str(value or "")
    return text.lower()

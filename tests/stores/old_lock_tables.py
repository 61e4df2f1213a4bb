"""The lock code of the documents C and D: what its replicas send to MySQL, with each replica's own clock.

An old replica is an object with a connection of its own. ``clock`` is what its machine takes for the time.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pymysql

DUPLICATE, DEADLOCK = 1062, 1213

CREATE_C = """CREATE TABLE {table} (
    id VARCHAR(191) PRIMARY KEY, created_at DATETIME(3) NULL, updated_at DATETIME(3) NULL,
    expired_at DATETIME(3) NULL, action VARCHAR(191) NOT NULL UNIQUE, holder LONGTEXT)"""

CREATE_D = """CREATE TABLE {table} (
    id BIGINT AUTO_INCREMENT PRIMARY KEY,
    lock_key VARCHAR(255) NOT NULL,
    owner VARCHAR(255) NOT NULL,
    lock_type ENUM('workflow', 'node', 'resource') NOT NULL,
    expires_at TIMESTAMP NOT NULL,
    lock_data JSON NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
    UNIQUE KEY uk_lock_key (lock_key), KEY idx_owner (owner), KEY idx_expires_at (expires_at)
) ENGINE=InnoDB"""


class Replica:
    def __init__(self, raw: Any, table: str, owner: str) -> None:
        self.raw, self.table, self.owner = raw, table, owner

    def clock(self) -> datetime:
        return datetime.now(UTC).replace(tzinfo=None)

    def do(self, sql: str, *values: Any) -> tuple[int, list[Any]]:
        """How many rows were changed, and the answer."""
        with self.raw.cursor() as cursor:
            changed = cursor.execute(sql.replace("{table}", self.table), values)
            return changed, list(cursor.fetchall())


class ReplicaC(Replica):
    """Document C, in Go: ``lock.go``. Its driver writes UTC."""

    create = CREATE_C

    def lock(self, action: str, lease: float) -> bool:
        self.do("DELETE FROM {table} WHERE expired_at < %s", self.clock())
        now = self.clock()
        row = (str(uuid.uuid4()), now, now, now + timedelta(seconds=lease), action, self.owner)
        insert = "INSERT INTO {table} (id, created_at, updated_at, expired_at, action, holder) "
        try:
            self.do(insert + "VALUES (%s, %s, %s, %s, %s, %s)", *row)
        except pymysql.err.Error as error:
            if "Duplicate entry" in str(error):
                return False
            raise
        return True

    def refresh(self, action: str, lease: float) -> None:
        update = "UPDATE {table} SET expired_at = %s, updated_at = %s WHERE action = %s AND holder = %s"
        self.do(update, self.clock() + timedelta(seconds=lease), self.clock(), action, self.owner)

    def unlock(self, action: str) -> None:
        self.do("DELETE FROM {table} WHERE action = %s AND holder = %s", action, self.owner)


class ReplicaD(Replica):
    """Document D, in TypeScript: ``acquireLock``, ``renewLock``, ``releaseLock``."""

    create = CREATE_D

    def lock(self, key: str, lease: float, kind: str = "workflow") -> bool:
        self.raw.begin()
        try:
            _, found = self.do("SELECT expires_at FROM {table} WHERE lock_key = %s FOR UPDATE", key)
            if found and found[0][0] > self.clock():
                self.raw.rollback()
                return False
            until = self.clock() + timedelta(seconds=lease)
            if found:
                update = "UPDATE {table} SET owner = %s, expires_at = %s, updated_at = %s WHERE lock_key = %s"
                self.do(update, self.owner, until, self.clock(), key)
            else:
                insert = "INSERT INTO {table} (lock_key, owner, lock_type, expires_at, created_at, updated_at) "
                values = (key, self.owner, kind, until, self.clock(), self.clock())
                self.do(insert + "VALUES (%s, %s, %s, %s, %s, %s)", *values)
            self.raw.commit()
        except BaseException:
            self.raw.rollback()
            raise
        return True

    def refresh(self, key: str, lease: float) -> None:
        """Raises LookupError: ``lockLost``. The document does not show the statement; it says that it is refused to
        all but the owner."""
        update = "UPDATE {table} SET expires_at = %s, updated_at = %s WHERE lock_key = %s AND owner = %s"
        changed, _ = self.do(update, self.clock() + timedelta(seconds=lease), self.clock(), key, self.owner)
        if not changed:
            raise LookupError(key)

    def unlock(self, key: str) -> None:
        self.do("DELETE FROM {table} WHERE lock_key = %s AND owner = %s", key, self.owner)

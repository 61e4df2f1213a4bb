"""The floor of a lease in MongoDB: the two commands that leasehold sends, through pymongo alone.

It polls each millisecond while busy.
No renewal, no loss, no waking, no time limit.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from pymongo import AsyncMongoClient, MongoClient, ReturnDocument

from leasehold.core.protocol import SECOND, Ask
from leasehold.stores.mongodb import pipelines as mongo_pipelines
from leasehold.stores.mongodb import store as mongo
from leasehold.stores.mongodb.access import Access
from leasehold.stores.mongodb.requests import AFTER, AS_IT_IS
from leasehold.stores.mongodb.url import target_from_url

from .base import Base


class Peer(Base):
    def __init__(self, target: str) -> None:
        super().__init__(target)
        where = target_from_url(target, "bare")
        self._client: Any = MongoClient(target)
        self._access = Access(where, self._client)
        self._aclient: Any = AsyncMongoClient(target)
        self._aaccess = Access(where, self._aclient)

    def _take(self, name: str, attempt: str, ttl: float) -> tuple[Any, Any]:
        ask = Ask(name, attempt, "bare", "lock", None, int(ttl * SECOND))
        stages = mongo_pipelines.with_ask(mongo.arguments(ask, "", 1), mongo_pipelines.ACQUIRE)
        return self._access.filter(name), stages

    def _give(self, handle: tuple[str, str, int]) -> tuple[Any, Any]:
        name, attempt, token = handle
        mine = {"attempt": attempt, "token": token}
        return self._access.filter(name, mongo.held_by(mine)), mongo_pipelines.with_ask(mine, mongo_pipelines.RELEASE)

    def acquire(self, name: str, ttl: float = 30.0) -> Any:
        attempt = os.urandom(16).hex()
        while True:
            found = self._access.leases.find_one_and_update(*self._take(name, attempt, ttl), upsert=True, **_OPTIONS)
            if found["holders"][0]["attempt"] == attempt:
                return name, attempt, found["holders"][0]["token"]
            time.sleep(0.001)

    def release(self, handle: Any) -> None:
        self._access.leases.find_one_and_update(*self._give(handle), **_OPTIONS)

    async def aacquire(self, name: str) -> Any:
        attempt = os.urandom(16).hex()
        while True:
            take = self._take(name, attempt, 30.0)
            found = await self._aaccess.leases.find_one_and_update(*take, upsert=True, **_OPTIONS)
            if found["holders"][0]["attempt"] == attempt:
                return name, attempt, found["holders"][0]["token"]
            await asyncio.sleep(0.001)

    async def arelease(self, handle: Any) -> None:
        await self._aaccess.leases.find_one_and_update(*self._give(handle), **_OPTIONS)

    def close(self) -> None:
        self._client.close()

    async def aclose(self) -> None:
        await self._aclient.close()


_OPTIONS: dict[str, Any] = {
    "projection": AFTER,
    "return_document": ReturnDocument.AFTER,
    "collation": AS_IT_IS,
}

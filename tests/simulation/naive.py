"""The negative control: a lock as it is often written. No token, no deadline, no look at whose it is."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from leasehold import StoreUnavailable

from .store import Call, Driver, Network
from .workload import Client

_numbers = itertools.count(1)
TTL = 4.0


class NaiveClient(Client):
    """Sets a key that expires, if it is not there; works; deletes it. The store's rows serve as its keys."""

    kinds = False

    def connect(self, network: Network) -> Any:
        self.driver = Driver(self.process, network)
        self.driver.on_ring = lambda *ring: None
        self.keys: dict[str, float] = network.server.__dict__.setdefault("keys", {})
        network.server.rules = NaiveRules(self.world, self.keys)  # type: ignore[assignment]
        return NaiveLocks(self.driver)

    async def take(self, name: str, ask: str) -> Any:
        invoked = self.world.now
        for _ in range(100):
            try:
                if await self.driver.run(_call("take", name), 2.0):
                    token = next(_numbers)  # only so that the judge can tell one holding from another
                    held = {"owner": ask, "token": token, "invoked": invoked, "outcome": "granted", "ask": ask}
                    self.world.history.add("acquire", name, **held)
                    return NaiveLease(self.driver, name, ask, token)
            except StoreUnavailable:
                pass
            await asyncio.sleep(0.2)
        return None

    def check(self, lease: Any) -> bool:
        self.world.history.add("check", lease.name, outcome="valid", owner=lease.data, token=lease.token)
        return True

    async def renew(self, lease: Any) -> None:
        pass


class NaiveRules:
    def __init__(self, world: Any, keys: dict[str, float]) -> None:
        self.world = world
        self.keys = keys

    def take(self, name: str) -> Any:
        yield from ()
        if self.keys.get(name, 0.0) > self.world.now:
            return False
        self.keys[name] = self.world.now + TTL
        return True

    def delete(self, name: str) -> Any:
        yield from ()
        return self.keys.pop(name, None) is not None


def _call(operation: str, *arguments: Any) -> Any:
    return (yield Call(operation, arguments))


class NaiveLease:
    ttl = TTL
    exclusive = True

    def __init__(self, driver: Driver, name: str, ask: str, token: int) -> None:
        self.driver, self.name, self.data, self.token = driver, name, ask, token

    def on_lost(self, callback: Any) -> None:
        pass

    def beat(self) -> None:
        pass

    async def release(self) -> bool:
        return bool(await self.driver.run(_call("delete", self.name), 2.0))

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(self, *error: object) -> None:
        pass


class NaiveLocks:
    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    async def close(self) -> None:
        pass

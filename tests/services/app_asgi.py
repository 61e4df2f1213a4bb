"""A service under uvicorn: leases are taken by tasks of its own."""

import os
from typing import Any

from work import NAMESPACE, start_tasks

from leasehold import aio


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "lifespan":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"here"})
        return
    await receive()
    async with aio.connect(os.environ["SERVICE_URL"], namespace=NAMESPACE) as locks:
        locks.drain_on_signals(grace=float(os.environ["SERVICE_GRACE"]))
        tasks = start_tasks(locks)
        await send({"type": "lifespan.startup.complete"})
        await receive()
    del tasks
    await send({"type": "lifespan.shutdown.complete"})

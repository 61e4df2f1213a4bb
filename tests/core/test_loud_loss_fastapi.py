"""A FastAPI dependency that yields inside a block, under uvicorn: a request whose lease is lost ends with LeaseLost."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from loud import broken, for_ever

import leasehold
from leasehold import aio
from leasehold.testing.handles import eventually

URL = "memory://fastapi"


async def held_by_a_task(name: str) -> AsyncIterator[aio.Lease]:
    async with app.state.tasks.lock(name) as lease:
        yield lease


def held_by_a_thread(name: str) -> Iterator[leasehold.Lease]:
    with app.state.threads.lock(name) as lease:
        yield lease


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with leasehold.connect(URL) as app.state.threads:
        async with aio.connect(URL) as app.state.tasks:
            yield


app = FastAPI(lifespan=lifespan)
inside = threading.Event()
ended: list[str] = []


@app.exception_handler(leasehold.LeaseLost)
async def lost(request: Request, error: leasehold.LeaseLost) -> JSONResponse:
    return JSONResponse({"lost": error.name}, 503)


@app.get("/task/{name}")
async def in_a_task(name: str, lease: aio.Lease = Depends(held_by_a_task)) -> int:  # noqa: B008
    inside.set()
    if name == "short":
        return lease.token
    try:
        await for_ever()
    finally:
        ended.append(name)
    return 0


@app.get("/thread/{name}")
def in_a_thread(name: str, lease: leasehold.Lease = Depends(held_by_a_thread)) -> int:  # noqa: B008
    inside.set()
    if name == "short":
        return lease.token
    assert lease.lost.wait(30)
    lease.check()
    return 0


@app.middleware("http")
async def middleware(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    """Starlette runs what is behind a middleware in a task group of anyio."""
    response = await call_next(request)
    response.headers["seen"] = "yes"
    return response


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    serving.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    serving.join(30)


def get(port: int, path: str, answers: list[Any]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    response = connection.getresponse()
    answers.append((response.status, response.read(), response.headers["seen"]))
    connection.close()


@pytest.mark.parametrize("side", ["task", "thread"])
def test_request_whose_lease_is_lost_is_answered_by_the_handler_of_lease_lost(port: int, side: str) -> None:
    inside.clear()
    ended.clear()
    answers: list[Any] = []
    request = threading.Thread(target=get, args=(port, f"/{side}/long", answers))
    request.start()
    assert inside.wait(30)
    broken(URL, "long")
    request.join(30)
    assert answers == [(503, b'{"lost":"long"}', "yes")]
    assert ended == (["long"] if side == "task" else []), "a task is cancelled"
    get(port, f"/{side}/short", answers)
    assert answers[-1][0] == 200
    with leasehold.connect(URL) as locks:
        eventually(lambda: not list(locks.leases()))

"""The fixtures of the suite. The author of a store supplies one more, ``store``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from ..scene import Scene
from ..store import ASYNCIO, THREADS, StoreUnderTest

F = TypeVar("F", bound=Callable[..., Any])


def needs(*abilities: str) -> Callable[[F], F]:
    """The test needs these abilities: fields of :class:`StoreUnderTest`, or what a store may lack. Other stores skip
    it, and the run shows why."""

    def mark(function: F) -> F:
        function.needs = abilities  # type: ignore[attr-defined]
        return function

    return mark


def open_scene(request: pytest.FixtureRequest, store: StoreUnderTest, side: str) -> Iterator[Scene]:
    if request.function.__name__ in store.notes:
        pytest.skip(f"{store.name}: {store.notes[request.function.__name__]}")
    for ability in getattr(request.function, "needs", ()):
        if ability in store.lacks or not getattr(store, ability, True):
            pytest.skip(f"{store.name} has no {ability}")
    scene = Scene(store, side)
    failed = request.session.testsfailed
    try:
        yield scene
    finally:
        scene.close()
    if request.session.testsfailed == failed:  # else what is left over is only what the failure left
        scene.check()


@pytest.fixture(params=[THREADS, ASYNCIO])
def scene(request: pytest.FixtureRequest, store: StoreUnderTest) -> Iterator[Scene]:
    """For tests that are the same with threads and asyncio."""
    yield from open_scene(request, store, request.param)


@pytest.fixture
def tasks(request: pytest.FixtureRequest, store: StoreUnderTest) -> Iterator[Scene]:
    """For tests of tasks only."""
    yield from open_scene(request, store, ASYNCIO)


@pytest.fixture
def threads(request: pytest.FixtureRequest, store: StoreUnderTest) -> Iterator[Scene]:
    """For tests of threads only."""
    yield from open_scene(request, store, THREADS)

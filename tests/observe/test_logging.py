"""``leasehold.logging``: one JSON object a line, with every field of an event."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

import leasehold
from leasehold import Event
from leasehold.logging import JsonFormatter
from leasehold.testing.handles import eventually

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """What leasehold has logged."""
    stream = io.StringIO()
    handler, logger = logging.StreamHandler(stream), logging.getLogger("leasehold")
    handler.setFormatter(JsonFormatter())
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_every_event_is_a_line_with_its_fields(lines: Lines) -> None:
    told: list[Event] = []
    with leasehold.connect("memory://json", ttl=60) as locks:
        locks.on_event(told.append)
        with locks.lock("x", kind="report") as lease:
            lease.renew()
            assert locks.lock("x").try_acquire() is None
        eventually(lambda: len(told) == 4)
    logged = [line for line in lines() if "event" in line]
    assert [line["event"] for line in logged] == ["acquired", "renewed", "refused", "released"]
    for event, line in zip(told, logged, strict=True):
        for field, value in event._asdict().items():
            if isinstance(value, float):
                assert line[field] == pytest.approx(value, abs=1e-5)
            elif value is not None:
                assert line["event" if field == "type" else field] == value
    refused = logged[2]
    assert refused["holder"] == lease.owner
    assert datetime.fromisoformat(refused["until"]).utcoffset() == timedelta()
    assert datetime.fromisoformat(refused["time"]).utcoffset() == timedelta()
    assert (refused["level"], refused["logger"]) == ("INFO", "leasehold")
    assert "held" not in refused


@pytest.mark.parametrize(
    "name", ['a "quoted" name\\', "naïve ☃ 🔒", "{braces} %s %d", "<img src=x onerror=…>", "\u2028"]
)
def test_any_name_stays_on_one_line(name: str, lines: Lines) -> None:
    with leasehold.connect("memory://json-names", ttl=60) as locks:
        assert locks.lock(name).acquire().release()
    assert [line["name"] for line in lines() if "event" in line] == [name, name]


def test_error_of_a_callback_is_in_the_line(lines: Lines) -> None:
    def fail(event: Event) -> None:
        raise ValueError("two\nlines")

    with leasehold.connect("memory://json-error", ttl=60) as locks:
        locks.on_event(fail)
        locks.lock("x").acquire()
        eventually(lambda: any("exception" in line for line in lines()))
    (failed, *_) = [line for line in lines() if "exception" in line]
    assert failed["level"] == "ERROR"
    assert failed["exception"].startswith("Traceback")
    assert failed["exception"].endswith("ValueError: two\nlines")


def test_records_of_other_libraries_are_formatted_too() -> None:
    record = logging.makeLogRecord({"name": "other", "msg": "%d of %s", "args": (3, "x"), "levelname": "INFO"})
    line = json.loads(JsonFormatter().format(record))
    assert (line["logger"], line["message"], set(line)) == ("other", "3 of x", {"time", "level", "logger", "message"})


def test_field_that_is_no_json_becomes_text() -> None:
    fields = {"lease_until": float("inf"), "lease_taken_from": object, "lease_message": "not this"}
    line = json.loads(JsonFormatter().format(logging.makeLogRecord({"msg": "here", **fields})))
    assert (line["until"], line["taken_from"], line["message"]) == ("inf", "<class 'object'>", "here")

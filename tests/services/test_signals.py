"""SIGTERM and SIGINT to services that hold leases: D9, in real processes."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from .service import LONG, Service, all_done, cut, script, sides
from .work import NAMES


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signalled_service_ends_its_work_and_exits_with_0(service: Service, side: str, number: int) -> None:
    script(service, side)
    begun = time.monotonic()
    service.signal(number)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert time.monotonic() - begun < service.grace


@sides
@cut
def test_work_of_a_signalled_service_is_cut_after_the_grace(service: Service, side: str) -> None:
    script(service, side)
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert not service.said("done")
    service.check_handed_on()
    (after,) = (
        re.search(r"timed out after ([\d.]+) s: ", line) for line in service.errors if "drain timed out" in line
    )
    assert after is not None
    assert 1 <= float(after[1]) < LONG
    assert service.logged("3 leases lost: 'one', 'three', 'two'")


@sides
def test_second_signal_ends_the_grace(service: Service, side: str) -> None:
    service.at_long_work()
    script(service, side)
    begun = time.monotonic()
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)
    assert time.monotonic() - begun < service.grace
    assert service.logged("drain ended by a second signal")


@sides
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_that_come_together_are_one(service: Service, side: str, number: int) -> None:
    """As under systemd, which signals a service's main process and its children, where the main one passes it on too.
    Here "together" is long, so that no stall of the machine comes in between."""
    script(service, side, "together")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    for _ in range(3):
        service.signal(number)
    assert service.ended() == 0, service.errors
    all_done(service)
    assert not service.logged("drain ended by a second signal")


@sides
def test_third_signal_kills_the_service(service: Service, side: str) -> None:
    """A body that does not stop though it was told, in a drain that would wait for it."""
    script(service, side, "stubborn")
    service.signal(signal.SIGTERM)
    service.until(lambda: service.logged("drain begins"))
    service.signal_again(signal.SIGTERM)
    service.until(lambda: service.logged("drain ended by a second signal"))
    service.signal_again(signal.SIGTERM)
    assert service.killed() == -signal.SIGTERM


@sides
def test_end_of_main_waits_for_the_drain(service: Service, side: str) -> None:
    script(service, side, "returns")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_handler_that_was_there_before_is_called(service: Service) -> None:
    script(service, "threads", "handler")
    service.signal(signal.SIGTERM)
    service.until(lambda: "handler\n" in service.lines)
    service.until(lambda: service.logged("drained in"))
    service.signal(signal.SIGTERM)  # drained: what happens now is the handler's business alone
    service.until(lambda: service.lines.count("handler\n") == 2)
    service.until(lambda: len(service.taken) == len(service.said("done")) == len(NAMES) and service.said("sent"))
    all_done(service)


@pytest.mark.parametrize(("how", "code"), [("works", 0), ("exits", 7)])
def test_work_in_the_main_thread_is_waited_for(service: Service, how: str, code: int) -> None:
    """Also when there was a handler that exits."""
    script(service, "threads", how)
    service.signal(signal.SIGTERM)
    assert service.ended() == code, service.errors
    all_done(service)


@sides
def test_handler_that_raises_ends_the_process(service: Service, side: str) -> None:
    script(service, side, "raises")
    service.signal(signal.SIGTERM)
    assert service.ended() == 1, service.errors
    assert service.logged("RuntimeError: told to stop")
    all_done(service)


@pytest.mark.parametrize(("side", "code"), [("threads", 0), ("asyncio", -signal.SIGTERM)])
def test_signal_to_a_forked_child_ends_the_child_alone(service: Service, side: str, code: int) -> None:
    """With threads it drains what is its own. The parent's loop does not run in it: there is nothing to wait for."""
    script(service, side, "forks")
    service.until(lambda: service.said("forked"))
    os.kill(int(service.said("forked")[0]), signal.SIGTERM)
    service.until(lambda: service.said("ended"))
    assert service.said("ended") == [str(code)]
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_signal_drains_two_locks_of_one_process(service: Service) -> None:
    script(service, "threads", "two")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    all_done(service)


def test_process_that_outlives_its_drain_can_be_drained_again(service: Service) -> None:
    script(service, "threads", "anew")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert "outlived []\n" in service.lines
    all_done(service)


@sides
def test_asking_for_the_drain_again_changes_its_grace(service: Service, side: str) -> None:
    service.at_long_work()
    script(service, side, "again")
    service.signal(signal.SIGTERM)
    assert service.ended() == 0, service.errors
    assert service.said("cut") == sorted(NAMES)

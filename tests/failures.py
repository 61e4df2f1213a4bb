"""Writes down what failed, for `scripts/run-tests`: a line of JSON each, into the file of $LEASEHOLD_FAILURES."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator

import pytest

UNSAFE = re.compile(r"SAFETY|holders?\b|tokens?\b|violations?\b|left after|leak|written|\.held\(", re.IGNORECASE)
"""What a failed assertion, or its message, says when it is about holders, tokens, lost writes or what is left over."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge by the assertion itself: of a report's text, `--tb` decides how much there is."""
    report = yield
    if report.failed and call.excinfo is not None:
        report.unsafe = _is_unsafe(call.excinfo)
    return report


def _is_unsafe(failure: pytest.ExceptionInfo[BaseException]) -> bool:
    if not isinstance(failure.value, (AssertionError, pytest.fail.Exception)):
        return False
    first_line = str(failure.value).partition("\n")[0]
    return UNSAFE.search(f"{failure.traceback[-1].statement}\n{first_line}") is not None


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("LEASEHOLD_FAILURES")
    if not path or not report.failed or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    # A worker that crashed has no exception to judge: a crash is never noise.
    is_unsafe = getattr(report, "unsafe", True)
    failure = {"test": report.nodeid, "when": report.when, "unsafe": is_unsafe, "text": report.longreprtext}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(failure) + "\n")

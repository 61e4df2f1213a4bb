"""Writes down what failed, for `scripts/run-tests`: a line of JSON each, into the file of $LEASEHOLD_FAILURES."""

from __future__ import annotations

import json
import os
import re

import pytest

UNSAFE = re.compile(
    r"^(E +|> +|    )(?=.*\b(SAFETY|holders?|tokens?|violations?|left after|leaked|lost writes?)\b).*", re.MULTILINE
)
"""A line of a failed assertion that speaks of holders, of tokens, of writes or of what is left over."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    path = os.environ.get("LEASEHOLD_FAILURES")
    if not path or not report.failed or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    text = report.longreprtext
    said = [line for line in text.splitlines() if line.startswith(("E  ", "> ", "    assert"))]
    is_unsafe = "AssertionError" in text and any(UNSAFE.match(line) for line in said)
    failure = {"test": report.nodeid, "when": report.when, "unsafe": is_unsafe, "text": text}
    with open(path, "a", encoding="utf-8") as file:
        file.write(json.dumps(failure) + "\n")

"""``make simulate`` ends with how much faster than real time the worlds were, by the CPU time that they took."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    passed = terminalreporter.stats.get("passed", [])
    worlds = [each for report in passed for key, each in report.user_properties if key == "simulated"]
    if worlds:
        simulated, took = (sum(each) for each in zip(*worlds, strict=True))
        terminalreporter.write_line(
            f"simulated {simulated:.0f} s in {took:.1f} s of CPU: {simulated / took:.0f} × real time"
        )

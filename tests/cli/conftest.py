"""The command on a database of its own, and terminals to run it on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from .shell import Shell
from .terminal import Terminal

Start: TypeAlias = Callable[..., Terminal]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The command ``leasehold`` on a database of its own."""
    with Shell(tmp_path) as shell:
        yield shell


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Start]:
    """Starts a program on a terminal of its own: ``terminal(*words, columns=80, VARIABLE="value")``."""
    opened = []

    def start(*words: str, columns: int = 80, **variables: str) -> Terminal:
        environment = {**shell.environment, "PS1": "$ ", **variables}
        terminal = Terminal(list(words), environment, str(shell.folder), columns)
        opened.append(terminal)
        return terminal

    yield start
    for each in opened:
        os.close(each.fd)

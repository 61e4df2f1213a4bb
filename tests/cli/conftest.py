from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The command ``leasehold`` on a database of its own."""
    with Shell(tmp_path) as shell:
        yield shell

"""Every example of the documentation and every script of examples/ runs, and shows what it says it shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .blocks import PAGES, ROOT, Block, blocks, commands, in_one_shell, matches

# Each block under its own place in the page, so that a traceback points there.
RUN = """
import sys
namespace = {"__name__": "__main__"}
for place, text in eval(sys.stdin.read()):
    exec(compile("\\n" * (place - 1) + text, sys.argv[1], "exec"), namespace)
"""


FRAGMENTS = {"docs/testing-a-store.md": "parts of a test module for a store of the reader's: they need its fixtures"}
"""Pages of which the Python blocks cannot be run, and why."""


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def of(page: Path, language: str) -> list[Block]:
    return [each for each in blocks(page.read_text()) if each.language == language and each.no_run is None]


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if of(page, language) and not (language == "python" and named(page) in FRAGMENTS)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment in which the default store is a file of this test."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("LEASEHOLD", "PYTEST"))}
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.path.dirname(sys.executable), os.environ["PATH"]])
    url = f"sqlite:///{tmp_path}/leases.db"
    return {**inherited, "PATH": path, "LEASEHOLD_URL": url, "XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}


def check(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert "Exception ignored" not in ran.stderr, ran.stderr


@pytest.mark.parametrize("page", pages_with("python"), ids=named)
def test_python_blocks_run(page: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    texts = [(each.line, each.text) for each in of(page, "python")]
    command = [sys.executable, "-W", "error", "-c", RUN, str(page)]
    check(
        subprocess.run(
            command, input=repr(texts), cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=100
        )
    )


@pytest.mark.timeout(360)  # of many commands, each a process
@pytest.mark.parametrize("page", pages_with("console"), ids=named)
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    for block in of(page, "console"):
        shown = list(commands(block.text))
        for command, output in zip(shown, in_one_shell([each.text for each in shown], tmp_path, environ), strict=True):
            assert matches(command.output, output), f"{named(page)}:{block.line}: $ {command.text}\n{output}"


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=named)
def test_scripts_run(script: Path, tmp_path: Path, environ: dict[str, str]) -> None:
    check(
        subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
        )
    )


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_examples_that_are_not_run_say_why(page: Path) -> None:
    for block in blocks(page.read_text()):
        assert block.no_run is None or len(block.no_run) > 10, f"{named(page)}:{block.line}: no-run without a reason"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target and not target.startswith(("#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), f"{named(page)} links to {target}"


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in menu


def test_the_blocks_of_a_page() -> None:
    page = """Text
```python
one = 1
```

<!-- no-run: it would delete the user's files -->

```sh
rm -rf ~
```
- a list
  ```console
  $ echo a
  a
  $ echo b
  ```
"""
    first, second, third = blocks(page)
    assert first == Block("python", "one = 1", 3, None)
    assert (second.language, second.no_run) == ("sh", "it would delete the user's files")
    assert third.no_run is None
    assert list(commands(third.text)) == [("echo a", "a"), ("echo b", "")]


def test_shown_output_is_compared(tmp_path: Path, environ: dict[str, str]) -> None:
    outputs = in_one_shell(["echo one; false", "echo status $?", "echo err >&2"], tmp_path, environ)
    assert [each.strip() for each in outputs] == ["one", "status 1", "err"]
    assert matches("token … was\nthere", "token 17 was  \nthere\n")
    assert not matches("token … was", "token 17 is")

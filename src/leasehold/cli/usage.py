"""The help pages: ``leasehold --help``, ``leasehold COMMAND --help`` and ``leasehold help COMMAND``.

A page is written here, except for its lists of options and commands, which are made from the tables that the parser
and the completions use too. Every line fits a terminal of 80 columns.
"""

from __future__ import annotations

from textwrap import wrap

from .descriptions import SUMMARIES, options_of

WIDTH = 80
_LEFT = 24
"""Where the text about an option starts."""


def page(command: str) -> str:
    """The help page of a command; of "", the main page."""
    listed = [_item(_flags(option.flags, option.value), option.text, _LEFT) for option in options_of(command)]
    commands = [_item(f"leasehold {name} {words}", text, 38) for name, (words, text) in SUMMARIES.items()]
    return _PAGES[command].replace("{options}\n", "".join(listed)).replace("{commands}\n", "".join(commands))


def _flags(flags: list[str], value: str) -> str:
    """``-w, --timeout 10s``. Long options stand below each other."""
    short = "" if len(flags[0]) == 2 else "    "
    return f"{short}{', '.join(flags)} {value}".rstrip()


def _item(left: str, text: str, column: int) -> str:
    """One item of a list: what it is called, and from ``column`` on what it is."""
    lines = wrap(text, WIDTH - column, break_long_words=False, break_on_hyphens=False)
    left = f"  {left}".ljust(column)
    if not left.endswith(" "):
        left = f"{left.rstrip()}\n{' ' * column}"
    return left + f"\n{' ' * column}".join(lines) + "\n"


_MAIN = """\
usage: leasehold COMMAND ...

Locks that expire by themselves, for programs and shell scripts that must not
do the same thing twice at a time.

{commands}

`leasehold COMMAND --help` has examples and all options. Options of every
command:

{options}

Durations are seconds, or a number with a unit: 500ms, 30s, 5m, 1h, 2d.

Environment:
  LEASEHOLD_URL   the store; safer than --url for a URL with a password
  NO_COLOR        no colour, not on a terminal either

Exit codes:
  0    done
  1    nobody holds it (doctor, init: something is wrong)
  2    wrong usage
  69   the store cannot be reached
  78   the store is not ready: the message says how to fix it
"""

_RUN = """\
usage: leasehold run NAME [options] [--] COMMAND...

Holds the lease NAME while COMMAND runs, and exits with COMMAND's status. The
lease is renewed in the background. If that fails, or somebody breaks the
lease, COMMAND is stopped before anybody else can have it. If `leasehold run`
is killed, COMMAND and the processes it started are killed too.

{options}

COMMAND has LEASEHOLD_NAME, LEASEHOLD_TOKEN and LEASEHOLD_OWNER in its
environment. The token is greater than that of every earlier holder: a database
or an API that remembers the greatest one it has seen can refuse an old one.
(With --limit or --shared several tokens are valid at once.) Signals are passed
on to COMMAND's process group.

Examples:
  leasehold run backup -- restic backup /srv
  leasehold run nightly -n --on-busy-exit 0 --min-hold 1m -- ./report.sh
                                                      # cron, on two hosts
  leasehold run deploy -w 5m --ttl 10s --kill-after 2s -- make deploy
  leasehold run encode --limit 4 -- ffmpeg -i in.mov out.mp4
  leasehold run index --shared -- ./search        # many searches at once ...
  leasehold run index -- ./rebuild                # ... but none beside this
  leasehold run poll --url redis://cache/0 --on-unavailable skip -- ./poll.py
  leasehold run ids -- sh -c 'psql -c "select take($LEASEHOLD_TOKEN)"'

Exit codes:
  COMMAND's own; 128 + n if signal n killed it (or `run`, while it waited)
  2    wrong usage
  69   the store cannot be reached
  71   cannot start a process
  74   the lease was lost
  75   busy: the message says who holds it since when
  77   the lease was lost, and COMMAND could not be stopped, because it runs as
       another user (sudo)
  78   the store is not ready: the message says how to fix it
  126  COMMAND cannot be run
  127  COMMAND does not exist
"""

_ONCE = """\
usage: leasehold once NAME [options] [--] COMMAND...

Runs COMMAND unless that has been done already, and records that it was. If
several are started together, one of them runs it; the others wait until it is
done, and exit with 0 without running it. If that one dies, another runs it.
For migrations and other things that a container does before it starts its
service.

{options}

COMMAND has LEASEHOLD_NAME, LEASEHOLD_TOKEN and LEASEHOLD_OWNER in its
environment, as with `leasehold run`. If SIGTERM, SIGINT, SIGHUP, SIGQUIT or
SIGKILL ended it, it was interrupted: nothing is recorded, and the next process
runs it.

Examples:
  leasehold once migrate --version 42 --url postgresql://db/app -- \\
      ./manage.py migrate
  leasehold once seed --retries 2 -- ./seed.sh && exec ./serve
  leasehold once report --per hour -- ./report.sh          # cron, on two hosts

Exit codes:
  0    it is done, here or by another   75   another is still running it, or
  78   no room for another version           --per: the slot is too far ahead
  COMMAND's own when it failed          the rest as for `leasehold run`
"""

_HISTORY = """\
usage: leasehold history NAME [options]

What became of the work NAME, which `leasehold once` or a program ran: each
version with its owner, its token, when it started, how long it took, and its
error. The newest is the last. Older ones than the last 100 (--keep of `once`)
are known as done or failed, and not listed.

{options}

Examples:
  leasehold history migrate
  leasehold history report --json | jq '.[-1].error'
"""

_FORGET = """\
usage: leasehold forget NAME [VERSION] [options]

Forgets that VERSION of the work NAME was done or failed, so that it runs again.
Without VERSION it forgets ALL versions, and says how many. With `--per`, only
the last slot can run again, or one that was refused. Waits while another
process runs the work. Exits with 1 if nothing was recorded. VERSION is as
`leasehold history` shows it.

{options}

Examples:
  leasehold forget migrate 42
  leasehold forget report 2026-11-19T22:00:00Z
"""

_LS = """\
usage: leasehold ls [PREFIX] [options]

The leases held now, by whom, for how long, and how many wait for each; of
names that start with PREFIX. On a terminal, names and owners that are too long
for it are shortened in the middle; elsewhere they are printed whole.

{options}

Examples:
  leasehold ls
  leasehold ls invoice: --url redis://cache/0
  leasehold ls --json | jq -r '.[] | select(.waiters > 0) | .name'
"""

_SHOW = """\
usage: leasehold show NAME [options]

Who holds NAME, since when, and with which data. Exits with 1 if nobody does.

{options}

Examples:
  leasehold show backup
  leasehold show backup >/dev/null && echo "a backup is running"
"""

_BREAK = """\
usage: leasehold break NAME [options]

Takes NAME from its holder: the holder is notified, and its lease is no longer
renewed. The name is free when the holder has stopped, or when the lease has
run out at the latest. Exits with 1 if nobody holds it.

{options}

Examples:
  leasehold break backup
  leasehold break backup --force
"""

_STATS = """\
usage: leasehold stats [options]

How many leases are held, of which kind and by whom, and for how long.

{options}

Example:
  leasehold stats --namespace billing
"""

_DOCTOR = """\
usage: leasehold doctor [options]

Checks the store as this user sees it: version, settings, replication, clocks,
permissions. Each finding says how to fix it. Exits with 1 if one of them is an
error.

{options}

Example:
  leasehold doctor --url postgresql://app@db/billing
"""

_INIT = """\
usage: leasehold init [options]

Creates what the store needs: a table, an index, collections. A user with the
right to do that does not need init: it happens on first use. Afterwards the
right to read and write is enough. Running it again does no harm. All
namespaces share what it creates, so --namespace is refused, except with
--from-legacy on MySQL and MariaDB: there it says whose leases the locks become.

{options}

Examples:
  leasehold init --url mysql://root@db/app
  leasehold init --url postgresql:///app --print-sql > migrations/leasehold.sql
  leasehold init --url mongodb://db/app --from-legacy --dry-run
  leasehold init --url mysql://root@db/app --from-legacy --legacy-table my_locks
"""

_BENCH = """\
usage: leasehold bench [options]

Measures leases on this store from this machine: how long an uncontended
acquire and release takes, how long a released lease takes to reach a waiting
process, how many hand-offs per second there are when several processes contend
for one name, what it costs to hold many leases, and how long it takes until a
killed holder is replaced. Uses a namespace of its own (--namespace is refused)
and leaves nothing behind. The figures are for this store over this network
path: run it twice.

{options}

Example:
  leasehold bench --url redis://cache/0 --processes 8
"""

_COMPLETION = """\
usage: leasehold completion SHELL

Prints a script that completes commands, options and their values in SHELL:
bash, zsh or fish. For show, break and ls it also completes the names of held
leases: it asks the store for at most a second, and stays silent if that fails.

{options}

Examples:
  eval "$(leasehold completion bash)"                        # in ~/.bashrc
  eval "$(leasehold completion zsh)"             # in ~/.zshrc, after compinit
  leasehold completion fish > ~/.config/fish/completions/leasehold.fish
"""

_HELP = """\
usage: leasehold help [COMMAND]

The page of COMMAND, as `leasehold COMMAND --help` prints it; without COMMAND
the list of commands.

{options}

Example:
  leasehold help run
"""

_PAGES = {
    "": _MAIN,
    "run": _RUN,
    "once": _ONCE,
    "history": _HISTORY,
    "forget": _FORGET,
    "ls": _LS,
    "show": _SHOW,
    "break": _BREAK,
    "stats": _STATS,
    "doctor": _DOCTOR,
    "init": _INIT,
    "bench": _BENCH,
    "completion": _COMPLETION,
    "help": _HELP,
}

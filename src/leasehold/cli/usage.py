"""What ``leasehold --help`` says."""

from __future__ import annotations

STORE = """\
  --url URL             the store; otherwise $LEASEHOLD_URL, otherwise a SQLite file in your state folder
                        (~/.local/state/leasehold/leases.db), shared by all your processes on this machine
  --namespace NAME      keeps applications apart that share a store
  -h, --help            this page
"""

MAIN = f"""\
usage: leasehold COMMAND ...

Locks that expire by themselves, for programs and shell scripts that must not do the same thing twice at a time.

  leasehold run NAME -- COMMAND...   hold the lease NAME while COMMAND runs
  leasehold ls [PREFIX]              what is held, by whom, for how long
  leasehold show NAME                one lease
  leasehold break NAME               take a lease from its holder
  leasehold stats                    figures

`leasehold COMMAND --help` has examples and all options. Options of every command:

{STORE}  --version             the version of leasehold

Durations are seconds, or a number with a unit: 500ms, 30s, 5m, 1h, 2d.

Exit codes:
  0   done              69  the store cannot be reached
  1   nobody holds it   78  the store needs mending first: the message says how
  2   wrong usage
"""

RUN = f"""\
usage: leasehold run NAME [options] [--] COMMAND...

Holds the lease NAME while COMMAND runs, and exits with COMMAND's status. The lease is renewed all the time. If that
fails, or somebody breaks the lease, COMMAND is ended before anybody else can have it. If `leasehold run` is killed,
COMMAND and what it has started are killed too.

  --ttl 30s             how long the lease lasts without renewal: what others wait at most after a crash
  --timeout 10s         how long to wait for the lease; otherwise as long as it takes
  --no-wait             do not wait
  --min-hold 5s         keep others out for at least this long from the start, even if COMMAND is quicker:
                        for cron on hosts whose clocks differ
  --kill-after 5s       when the lease is lost, COMMAND gets SIGTERM, and SIGKILL this much later; must fit into
                        --ttl, and is a sixth of it if that is less than 5s
  --on-busy-exit 75     the exit code when the lease could not be had; 0 for cron, which mails about others
  --on-unavailable fail|skip|run
                        when the store cannot be reached (within --timeout, or for 30s): fail with 69; skip COMMAND,
                        as if busy; or run it without the lease
  --owner NAME          who holds the lease, for others to see; otherwise HOST_PID_RANDOM
{STORE}
COMMAND finds LEASEHOLD_NAME, LEASEHOLD_TOKEN and LEASEHOLD_OWNER in its environment. The token is greater than that of
every earlier holder: a database or an API that remembers the greatest one it has seen can refuse a late one. Signals
are passed on to COMMAND's process group.

Examples:
  leasehold run backup -- restic backup /srv
  leasehold run nightly --no-wait --on-busy-exit 0 --min-hold 1m -- ./report.sh    # cron, on two hosts
  leasehold run deploy --timeout 5m --ttl 10s --kill-after 2s -- make deploy
  leasehold run poll --url redis://cache/0 --on-unavailable skip -- ./poll.py
  leasehold run ids -- sh -c 'psql -c "select take($LEASEHOLD_TOKEN)"'

Exit codes:
  COMMAND's own; 128 + n when signal n has killed it (or us, while we waited)
  2    wrong usage                      75   busy: the message says who holds it since when
  69   the store cannot be reached      78   the store needs mending first: the message says how
  71   no process can be started        126  COMMAND cannot be run
  74   the lease was lost               127  there is no COMMAND
"""

LS = f"""\
usage: leasehold ls [PREFIX] [options]

What is held now, by whom, for how long, and how many wait for it; of names that start with PREFIX.

  --json                as a list of objects, for programs
{STORE}
Examples:
  leasehold ls
  leasehold ls invoice: --url redis://cache/0
  leasehold ls --json | jq -r '.[] | select(.waiters > 0) | .name'
"""

SHOW = f"""\
usage: leasehold show NAME [options]

Who holds NAME, since when, and with which data. Exits with 1 when nobody does.

  --json                as an object, for programs
{STORE}
Examples:
  leasehold show backup
  leasehold show backup >/dev/null && echo "a backup is running"
"""

BREAK = f"""\
usage: leasehold break NAME [options]

Takes NAME from its holder: the holder is told, and its lease is not renewed any more. The name is free when the holder
has stopped, at the latest when the lease has run out. Exits with 1 when nobody holds it.

  --force               free the name at once. Its holder may still be at work when the next one starts: for holders
                        of which you know that they are dead
  --json                the answer as an object, for programs
{STORE}
Examples:
  leasehold break backup
  leasehold break backup --force
"""

STATS = f"""\
usage: leasehold stats [options]

How many leases are held, of which kind and by whom, and for how long.

  --json                as an object, for programs
{STORE}
Example:
  leasehold stats --namespace billing
"""

OF = {"": MAIN, "run": RUN, "ls": LS, "show": SHOW, "break": BREAK, "stats": STATS}

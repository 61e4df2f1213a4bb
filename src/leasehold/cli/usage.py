"""What ``leasehold --help`` says."""

from __future__ import annotations

STORE = """\
  --url URL             the store; otherwise $LEASEHOLD_URL, otherwise a SQLite file in your state folder
                        (~/.local/state/leasehold/leases.db), shared by this user's processes on this machine
  --namespace NAME      keeps applications apart that share a store (not for init and bench)
  -h, --help            this page
"""

MAIN = f"""\
usage: leasehold COMMAND ...

Locks that expire by themselves, for programs and shell scripts that must not do the same thing twice at a time.

  leasehold run NAME -- COMMAND...   hold the lease NAME while COMMAND runs
  leasehold once NAME -- COMMAND...  run COMMAND once, however many start it; the others wait until it is done
  leasehold ls [PREFIX]              what is held, by whom, for how long
  leasehold show NAME                one lease
  leasehold break NAME               take a lease from its holder
  leasehold stats                    figures
  leasehold doctor                   is the store fit for leases, and what to fix
  leasehold init                     create the tables, indexes or collections that the store needs
  leasehold bench                    how fast leases are on this store, from here

`leasehold COMMAND --help` has examples and all options. Options of every command:

{STORE}  --version             the version of leasehold

Durations are seconds, or a number with a unit: 500ms, 30s, 5m, 1h, 2d.

Exit codes:
  0   done              69  the store cannot be reached
  1   nobody holds it   78  the store is not ready: the message says how to fix it
      (doctor, init: something is wrong)
  2   wrong usage
"""

RUN = f"""\
usage: leasehold run NAME [options] [--] COMMAND...

Holds the lease NAME while COMMAND runs, and exits with COMMAND's status. The lease is renewed in the background. If
that fails, or somebody breaks the lease, COMMAND is stopped before anybody else can have it. If `leasehold run` is
killed, COMMAND and the processes it started are killed too.

  --ttl 30s             how long the lease lasts without renewal, and so how long others wait after a crash
  --timeout 10s         how long to wait for the lease; otherwise as long as it takes
  --no-wait             do not wait
  --min-hold 5s         keep others out for at least this long from the start, even if COMMAND is quicker:
                        for cron on hosts whose clocks differ
  --kill-after 5s       when the lease is lost, COMMAND gets SIGTERM, and SIGKILL this much later; must fit into
                        --ttl, and is a sixth of it if that is less than 5s
  --on-busy-exit 75     the exit code if the lease could not be acquired; 0 for cron, which mails about others
  --on-unavailable fail|skip|run
                        if the store cannot be reached (within --timeout, or for 30s): fail with 69; skip COMMAND,
                        as if busy; or run it without the lease
  --owner NAME          the name of the holder that others see; otherwise HOST_PID_RANDOM
{STORE}
COMMAND has LEASEHOLD_NAME, LEASEHOLD_TOKEN and LEASEHOLD_OWNER in its environment. The token is greater than that of
every earlier holder: a database or an API that remembers the greatest one it has seen can refuse an old one. Signals
are passed on to COMMAND's process group.

Examples:
  leasehold run backup -- restic backup /srv
  leasehold run nightly --no-wait --on-busy-exit 0 --min-hold 1m -- ./report.sh    # cron, on two hosts
  leasehold run deploy --timeout 5m --ttl 10s --kill-after 2s -- make deploy
  leasehold run poll --url redis://cache/0 --on-unavailable skip -- ./poll.py
  leasehold run ids -- sh -c 'psql -c "select take($LEASEHOLD_TOKEN)"'

Exit codes:
  COMMAND's own; 128 + n if signal n killed it (or `run`, while it waited)
  2    wrong usage                      75   busy: the message says who holds it since when
  69   the store cannot be reached      78   the store is not ready: the message says how to fix it
  71   cannot start a process           126  COMMAND cannot be run
  74   the lease was lost               127  COMMAND does not exist
  77   the lease was lost, and COMMAND could not be stopped, because it runs as another user (sudo)
"""

ONCE = f"""\
usage: leasehold once NAME [options] [--] COMMAND...

Runs COMMAND unless that has been done already, and records that it was. If several are started together, one of them
runs it; the others wait until it is done, and exit with 0 without running it. If that one dies, another runs it. For
migrations and other things that a container does before it starts its service.

  --version V           of the work (default 1): what was done as version 1 is done again as version 2
  --retries N           how often a COMMAND that failed (exit status other than 0) is tried again, by the next process
                        that comes; after that the failure stands, and everybody exits with its status
  --ttl 30s             how long the lease lasts without renewal, and so how long others wait after a crash
  --timeout 10s         how long to wait for another that is running it; otherwise as long as it takes
  --no-wait             do not wait
  --kill-after 5s       when the lease is lost, COMMAND gets SIGTERM, and SIGKILL this much later
  --on-busy-exit 75     the exit code if another is still running it
  --owner NAME          the name of the runner that others see; otherwise HOST_PID_RANDOM
{STORE}
COMMAND has LEASEHOLD_NAME, LEASEHOLD_TOKEN and LEASEHOLD_OWNER in its environment, as with `leasehold run`. If SIGTERM,
SIGINT, SIGHUP, SIGQUIT or SIGKILL ended it, it was interrupted: nothing is recorded, and the next process runs it.

Examples:
  leasehold once migrate --version 42 --url postgresql://db/app -- ./manage.py migrate
  leasehold once seed --retries 2 -- ./seed.sh && exec ./serve

Exit codes:
  0    it is done, here or by another   75   another is still running it
  COMMAND's own when it failed          the rest as for `leasehold run`
"""

LS = f"""\
usage: leasehold ls [PREFIX] [options]

The leases held now, by whom, for how long, and how many wait for each; of names that start with PREFIX.

  --json                as a list of objects, for programs
{STORE}
Examples:
  leasehold ls
  leasehold ls invoice: --url redis://cache/0
  leasehold ls --json | jq -r '.[] | select(.waiters > 0) | .name'
"""

SHOW = f"""\
usage: leasehold show NAME [options]

Who holds NAME, since when, and with which data. Exits with 1 if nobody does.

  --json                as an object, for programs
{STORE}
Examples:
  leasehold show backup
  leasehold show backup >/dev/null && echo "a backup is running"
"""

BREAK = f"""\
usage: leasehold break NAME [options]

Takes NAME from its holder: the holder is notified, and its lease is no longer renewed. The name is free when the holder
has stopped, or when the lease has run out at the latest. Exits with 1 if nobody holds it.

  --force               free the name at once. Its holder may then still be working when the next one starts: use it
                        only if you know that the holder is dead, or if the resource checks tokens.
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

DOCTOR = f"""\
usage: leasehold doctor [options]

Checks the store as this user sees it: version, settings, replication, clocks, permissions. Each finding says how to fix
it. Exits with 1 if one of them is an error.

  --json                as a list of objects, for programs
{STORE}
Example:
  leasehold doctor --url postgresql://app@db/billing
"""

INIT = f"""\
usage: leasehold init [options]

Creates what the store needs: a table, an index, collections. A user with the right to do that does not need init: it
happens on first use. Afterwards the right to read and write is enough. Running it again does no harm.

  --print-sql           print the SQL for a migration of your own, and do nothing (PostgreSQL, MySQL, MariaDB)
  --from-legacy         first remove expired records left by the lock code that leasehold replaces (MongoDB); refuses
                        while one of them is held
  --legacy-collection NAME[,NAME]
                        where they are, if not in system_locks or distributed.locks
  --dry-run             only say what would be done
  --json                as a list of objects, for programs
{STORE}
Examples:
  leasehold init --url mysql://root@db/app
  leasehold init --url postgresql:///app --print-sql > migrations/leasehold.sql
  leasehold init --url mongodb://db/app --from-legacy --dry-run
"""

BENCH = f"""\
usage: leasehold bench [options]

Measures leases on this store from this machine: how long an uncontended acquire and release takes, how long a released
lease takes to reach a waiting process, how many hand-offs per second there are when several processes contend for one
name, what it costs to hold many leases, and how long it takes until a killed holder is replaced. Uses a namespace of
its own and leaves nothing behind. The figures are for this store over this network path: run it twice.

  --seconds 2s          for how long each of the first five is measured
  --processes 4         how many contend for one lease
  --leases 100          how many are held at once
  --json                as an object, for programs
{STORE}
Example:
  leasehold bench --url redis://cache/0 --processes 8
"""

OF = {
    "": MAIN,
    "run": RUN,
    "once": ONCE,
    "ls": LS,
    "show": SHOW,
    "break": BREAK,
    "stats": STATS,
    "doctor": DOCTOR,
    "init": INIT,
    "bench": BENCH,
}

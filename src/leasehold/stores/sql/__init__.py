"""What PostgreSQL, MySQL and MariaDB share.

**Stored**: one row per name (:mod:`.rows`). One holder stands in its columns: attempt, token, owner, kind, data, the
times. What goes beyond one holder (shape, further holders, the queue) is JSON in the column ``more``, NULL while the
name is a lock without waiters. A note, which outlives the leases, has a column of its own.

**Clock**: the server's, in microseconds, read within each statement. No client's clock takes part, and a statement that
reaches the server after its caller gave up grants nothing (``until``).

**Wake-ups**: PostgreSQL sends NOTIFY with the statement that grants. On MySQL and MariaDB a connection of each process
sleeps in the server and is ended with KILL QUERY. Without either, waiters poll.

**One generator**: an operation yields a Turn, Statements and Pauses (:mod:`.requests`) to a driver, from the rules down
to the statement.

**To read next**: :mod:`.store` (what an acquire, a release and a renewal ask for, and when they compare and swap), then
:mod:`.table` (one operation for each thing that is asked), the statements of ``stores/postgresql/sql.py`` or
``stores/mysql/sql.py``, and :mod:`.session` (limits, retries, wake-ups). :mod:`.threads` and :mod:`.tasks` do the I/O,
with connections from :mod:`.pool`. :mod:`.transaction` is ``in_transaction``, :mod:`.doctor` init and doctor. The
reasons are in ``docs/design/05-sql.md``.
"""

"""A write that is refused when a newer holder has written: the fencing token at work, by hand, in SQL.

The resource keeps the highest token that it has seen beside the data, and compares in the same statement that writes.
So it does not matter how late a former holder's write arrives.
"""

import sqlite3

import leasehold

database = sqlite3.connect(":memory:", isolation_level=None)
database.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER, token INTEGER NOT NULL DEFAULT 0)")
database.execute("INSERT INTO account (id, balance) VALUES (1, 100)")


def set_balance(balance: int, lease: leasehold.Lease) -> None:
    written = database.execute(
        "UPDATE account SET balance = :balance, token = :token WHERE id = 1 AND token <= :token",
        {"balance": balance, "token": lease.token},
    ).rowcount
    print(f"{lease.owner} sets {balance}: {'written' if written else 'refused, a newer holder has written'}")


with leasehold.connect(owner="A") as a, leasehold.connect(owner="B") as b:
    stale = a.lock("account:1").acquire()
    set_balance(90, stale)
    # A is paused here for so long that its lease runs out; the operator's break stands for that.
    b.break_lease("account:1", force=True)
    with b.lock("account:1") as fresh:
        set_balance(50, fresh)
        set_balance(80, stale)  # A goes on where it was stopped
    assert stale.token < fresh.token

assert database.execute("SELECT balance FROM account").fetchone() == (50,)
database.close()

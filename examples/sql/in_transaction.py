"""Pay an invoice under a lease, so that the lease's check and the payment are committed together, or neither.

Needs SQLAlchemy and, in LEASEHOLD_URL, a PostgreSQL, MySQL or MariaDB server: the one that the business data is on.
"""

import os

import sqlalchemy
from sqlalchemy import text

import leasehold

url = os.environ["LEASEHOLD_URL"]
scheme, _, place = url.partition("://")
engine = sqlalchemy.create_engine(f"{'postgresql+psycopg' if scheme == 'postgresql' else 'mysql+pymysql'}://{place}")

with engine.begin() as connection:
    connection.execute(text("DROP TABLE IF EXISTS example_invoice"))
    connection.execute(text("CREATE TABLE example_invoice (id INT PRIMARY KEY, paid_by VARCHAR(99))"))
    connection.execute(text("INSERT INTO example_invoice VALUES (42, NULL)"))

PAY = text("UPDATE example_invoice SET paid_by = :who WHERE id = 42")


def pay(lease: leasehold.Lease) -> None:
    with engine.begin() as connection:
        lease.in_transaction(connection)  # raises LeaseLost unless the database says that it is still ours
        connection.execute(PAY, {"who": lease.owner})


with leasehold.connect(engine, owner="A") as a, leasehold.connect(engine, owner="B") as b:
    stale = a.lock("invoice:42").acquire()
    b.break_lease("invoice:42", force=True)  # stands for a pause of A's that was longer than its ttl
    with b.lock("invoice:42") as fresh:
        pay(fresh)
        try:
            pay(stale)
        except leasehold.LeaseLost as error:
            print(f"A pays nothing: {error}")

    # A name for the length of one transaction, without a lease: COMMIT or ROLLBACK frees it.
    with engine.begin() as connection:
        token = a.lock("invoice:43").in_transaction(connection)
        print(f"nobody else is at invoice 43 until this transaction ends; its token is {token}")

with engine.begin() as connection:
    assert connection.execute(text("SELECT paid_by FROM example_invoice")).scalar() == "B"
    connection.execute(text("DROP TABLE example_invoice"))
engine.dispose()

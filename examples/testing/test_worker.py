"""How a program that holds a lease is tested: what does it do when the lease is lost?

Run it with ``pytest examples/testing``. The fixture ``leases`` comes with leasehold.
"""

import threading

import leasehold


class Importer:
    """The program under test: imports batches under a lease, and stops when the lease is lost."""

    def __init__(self):
        self.locks = leasehold.connect(ttl=30)
        self.done = 0
        self.stopped_because = None

    def run(self, batches):
        try:
            with self.locks.lock("import") as lease:
                for batch in batches:
                    lease.check()
                    batch()
                    self.done += 1
        except leasehold.LeaseLost as error:
            self.stopped_because = str(error)


def test_a_long_import_keeps_its_lease(leases):
    importer = Importer()
    importer.run([lambda: leases.advance(600)] * 3)
    assert importer.done == 3


def test_it_stops_when_the_store_is_unreachable_for_longer_than_the_ttl(leases):
    importer = Importer()

    def unreachable_for(seconds):
        with leases.partition():
            leases.advance(seconds)

    importer.run([lambda: unreachable_for(5), lambda: unreachable_for(31), lambda: None])
    assert importer.done == 2  # a short outage does no harm; after the long one it stops at its next check
    assert "deadline" in importer.stopped_because


def test_another_takes_over_with_a_higher_token(leases):
    importer, other = Importer(), leasehold.connect()
    tokens = []

    def batch():
        tokens.append(leasehold.current().token)
        leasehold.current().lose()

    importer.run([batch, batch])
    with other.lock("import").acquire(timeout=60) as lease:
        assert lease.token > tokens[0]
    assert importer.done == 1
    leases.check()


def test_a_waiter_is_served_when_the_holder_is_stopped(leases):
    holder, waiter = leasehold.connect(ttl=30), leasehold.connect(ttl=30)
    holder.lock("import", renew=False).acquire()
    got = threading.Event()

    def wait():
        with waiter.lock("import"):
            got.set()

    thread = threading.Thread(target=wait)
    thread.start()
    leases.advance(31)
    assert got.wait(10)
    thread.join()

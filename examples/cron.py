"""A job that two hosts start by cron at the same minute, and that shall run once.

The job may be quick and the clocks of the hosts a little apart. `min_hold` keeps the name taken for that long,
counted from the start, although the job is done: who comes a second late still finds it busy.

From the shell: leasehold run nightly --no-wait --min-hold 30s -- ./report
"""

import time

import leasehold


def nightly(host: str) -> None:
    with leasehold.connect(owner=host) as locks:
        # With the default of a timeout of 0, try_acquire() gives None at once when somebody else has it.
        lease = locks.lock("nightly", min_hold=1.0).try_acquire()
        if lease is None:
            print(f"{host}: another host runs it, or just did")
            return
        with lease:
            print(f"{host}: report is made")


nightly("host-a")  # done in no time
nightly("host-b")  # its cron is a little late
time.sleep(1.1)
nightly("host-b")  # the next night

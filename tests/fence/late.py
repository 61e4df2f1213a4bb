"""A holder that is paused just before its write leaves: ``late.py LEASES KIND URL``. It stops itself there."""

import signal
import sys
import threading

import leasehold
from fence.resources import KINDS
from intercept import Intercepted

leases, kind, url = sys.argv[1:]


stopped: list[bool] = []


def stop() -> None:
    if not stopped:  # at the first thing that it sends
        stopped.append(True)
        with store.gate:
            # Not while the keeper is at the store: stopped in a write it would hold up everybody.
            print("stopping", flush=True)
            signal.raise_signal(signal.SIGSTOP)


resource = KINDS[kind](url, stop)
store = Intercepted(leases)
store.gate = threading.RLock()
with store.connect() as locks:
    # Again when its lease was lost before that: of a machine that stands still for longer than its ttl.
    while not stopped:
        with locks.lock("account:1", ttl=2) as lease:
            try:
                resource.write(lease, 80)
                print("written", flush=True)
            except leasehold.LeaseLost as error:
                if stopped:
                    print(type(error).__name__, flush=True)
resource.close()

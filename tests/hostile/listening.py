"""A program whose signal handler comes while its first waiter has a listener started.

`listening.py URL NAMESPACE waits|raises`: the handler waits for a lease itself, or raises.
"""

from __future__ import annotations

import faulthandler
import json
import signal
import sys
import threading
import time
from types import FrameType
from typing import Any

import leasehold

ROUNDS = 5


class Interrupted(Exception):
    """What the handler raises."""


def is_in_listen(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "listen":
        frame = frame.f_back
    return frame is not None


def main(url: str, namespace: str, how: str) -> None:
    faulthandler.dump_traceback_later(40, exit=True)
    handled = 0
    with leasehold.connect(url, namespace=namespace) as other:
        kept = [other.lock(name).acquire() for name in ("busy", "busy too")]
        for _ in range(ROUNDS):
            with leasehold.connect(url, namespace=namespace) as locks:

                def handle(number: int, frame: FrameType | None, locks: leasehold.Locks = locks) -> None:
                    nonlocal handled
                    handled += 1
                    if how == "raises":
                        raise Interrupted
                    locks.lock("busy too").try_acquire(timeout=0.5)

                def profile(frame: FrameType, event: str, called: Any) -> None:
                    started = event == "c_return" and called.__name__ in ("start_new_thread", "start_joinable_thread")
                    if started and is_in_listen(frame):
                        signal.raise_signal(signal.SIGALRM)

                signal.signal(signal.SIGALRM, handle)
                for _ in range(2):
                    sys.setprofile(profile)
                    try:
                        locks.lock("busy").try_acquire(timeout=0.5)
                    except Interrupted:
                        pass
                sys.setprofile(None)
        released = [lease.release() for lease in kept]
    ends = time.monotonic() + 5
    left = ["?"]
    while left and time.monotonic() < ends:
        left = [thread.name for thread in threading.enumerate() if thread.name == "leasehold-sql"]
        time.sleep(0.05)
    print(json.dumps({"handled": handled, "left": left, "released": released}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])

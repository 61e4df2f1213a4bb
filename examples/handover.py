"""A lease that goes along with its task: whoever takes the task takes the lease over, and nobody comes in between.

The queue here is a list and the worker a function; with Celery the text is one more argument of the task.
"""

import leasehold

tasks: list[tuple[str, str]] = []


def web() -> None:
    with leasehold.connect() as locks:
        lease = locks.lock("video:3", ttl=60, data={"by": "web"}).acquire(timeout=5)
        with lease:
            tasks.append(("encode video:3", lease.transfer()))  # the end of the block leaves it to the worker
        worker()  # while this process lives: on the embedded store what a dead one held is free


def worker() -> None:
    task, text = tasks.pop()
    with leasehold.connect() as locks, locks.accept(text) as lease:
        lease.check()
        print(f"{task}: mine now, with a token of its own; offered by {lease.data['by']}")


web()

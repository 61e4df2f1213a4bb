"""Three instances start together: one initialises, the others wait for it and go on with what it made."""

import multiprocessing
import time

import leasehold


def initialise() -> dict[str, int]:
    print("initialising, under token", leasehold.current().token)
    time.sleep(0.3)
    return {"tables": 12}


def instance(number: int) -> None:
    with leasehold.connect(owner=f"instance-{number}") as locks:
        outcome = locks.once("initialise", version=1).run(initialise)
        print(f"instance-{number} starts; {outcome.owner} has made {outcome.result} in {outcome.duration:.1f} s")


if __name__ == "__main__":
    everyone = [multiprocessing.get_context("spawn").Process(target=instance, args=(number,)) for number in range(3)]
    for process in everyone:
        process.start()
    for process in everyone:
        process.join()
    assert [process.exitcode for process in everyone] == [0, 0, 0]

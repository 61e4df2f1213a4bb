"""A note: a small text beside a name that outlives its leases. ``once`` keeps its outcomes in it."""

from __future__ import annotations

import time

from ..scene import Scene
from .fixtures import needs
from .operations import LONG, A, B, busy, give_back, grant, run_out

TEXT = '{"outcome":"ünïcode 😀","quote":"\'\\"$$NOW %s"}'


@needs("note")
def test_op_a_note_is_written_by_the_holder_alone(scene: Scene) -> None:
    """Written only by the attempt that holds the name, with its token; None deletes."""
    locks, other, name = scene.connect(), scene.connect(), scene.name()
    read, write = locks.store.read_note, locks.store.write_note
    assert locks.run(read(name)) is None
    assert locks.run(write(name, A, 1, "x")) is False
    held = grant(locks.ask(name, A, LONG))
    assert locks.run(write(name, B, held.token, "x")) is False
    assert locks.run(write(name, A, held.token + 1, "x")) is False
    assert locks.run(read(name)) is None
    assert locks.run(write(name, A, held.token, TEXT)) is True
    assert locks.run(write(name, A, held.token, TEXT)) is True, "asked again after a lost answer"
    assert other.run(other.store.read_note(name)) == TEXT
    assert locks.run(read(scene.name())) is None, "of another name"
    assert locks.run(write(name, A, held.token, "")) is True
    assert other.run(other.store.read_note(name)) == ""
    assert locks.run(write(name, A, held.token, None)) is True
    assert locks.run(read(name)) is None
    assert locks.run(write(name, A, held.token, None)) is True
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is True
    assert not scene.held(name)


@needs("note")
def test_op_a_note_outlives_its_leases(scene: Scene) -> None:
    """It survives release, expiry, takeover and break; a holder that has lost the name cannot write."""
    locks, name = scene.connect(), scene.name()
    read, write = locks.store.read_note, locks.store.write_note
    first = grant(locks.ask(name, A, LONG))
    assert locks.run(write(name, A, first.token, "one"))
    assert locks.run(locks.store.release(name, A, first.token, first.hint)) is True
    assert locks.run(read(name)) == "one"
    assert locks.run(write(name, A, first.token, "late")) is False
    second = grant(locks.ask(name, A, 0.3))
    assert locks.run(read(name)) == "one"
    run_out(scene, name, 0.5)
    assert locks.run(write(name, A, second.token, "late")) is False, "expired"
    third = grant(locks.ask(name, B, LONG))
    assert locks.run(write(name, A, second.token, "late")) is False, "taken over"
    busy(locks.ask(name, A, LONG, queue=True)) if scene.store.fair else None
    assert locks.run(write(name, A, second.token, "late")) is False, "waiting"
    assert locks.run(write(name, B, third.token, "two")) is True
    assert locks.run(locks.store.interrupt(name, False)) is True
    assert locks.run(write(name, B, third.token, "late")) is False, "broken"
    give_back(locks, name, A, B)
    assert locks.run(read(name)) == "two"


@needs("note", "age")
def test_op_a_note_outlives_the_purge(scene: Scene) -> None:
    """A record with a note stays until the note is deleted; a record without one is purged."""
    locks, name, other = scene.connect(), scene.name(), scene.connect()
    held = grant(locks.ask(name, A, LONG))
    assert locks.run(locks.store.write_note(name, A, held.token, "kept"))
    assert locks.run(locks.store.release(name, A, held.token, held.hint)) is True
    assert scene.store.age is not None
    scene.store.age(scene.namespace, name)
    other.run(other.store.tidy())
    time.sleep(scene.store.slack)
    assert locks.run(locks.store.read_note(name)) == "kept"
    again = grant(locks.ask(name, B, LONG))
    assert again.token > held.token
    assert locks.run(locks.store.write_note(name, B, again.token, None)) is True
    give_back(locks, name, B)
    assert locks.run(locks.store.read_note(name)) is None


@needs("note")
def test_op_a_note_of_64_kib(scene: Scene) -> None:
    """The longest note."""
    locks, name = scene.connect(), scene.name()
    held = grant(locks.ask(name, A, LONG))
    text = "ü" * 32768
    assert locks.run(locks.store.write_note(name, A, held.token, text)) is True
    assert locks.run(locks.store.read_note(name)) == text
    assert locks.run(locks.store.write_note(name, A, held.token, None)) is True
    give_back(locks, name, A)


def test_op_the_clock_of_the_store_is_read(scene: Scene) -> None:
    """In µs since 1970, and never earlier than before; None where the store has no clock that all callers share."""
    locks, name = scene.connect(), scene.name()
    clocks = [locks.run(locks.store.read_clock(name)) for _ in range(2)]
    if None in clocks:
        assert clocks == [None, None]
        return
    assert clocks[0] <= clocks[1]
    assert abs(clocks[1] / 1e6 - time.time()) < 60

"""The judge of histories refuses each kind of bad one: a checker that accepts anything proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from leasehold.testing.history import History, Record, Resource, assert_clean, check, load


def granted(token: int, owner: str, invoked: float, returned: float) -> Record:
    return Record("acquire", "n", owner, token, invoked, returned, "granted", f"ask-{token}")


def did(op: str, outcome: str, token: int, owner: str, at: float, until: float | None = None) -> Record:
    return Record(op, "n", owner, token, at, at if until is None else until, outcome)


GOOD = [
    granted(1, "a", 0, 1),
    did("check", "valid", 1, "a", 1),
    did("write", "accepted", 1, "a", 1, 2),
    did("check", "valid", 1, "a", 3),
    did("renew", "renewed", 1, "a", 3, 3.5),
    did("release", "released", 1, "a", 4, 5),
    granted(2, "b", 0, 4.5),
    did("check", "valid", 2, "b", 4.5),
    did("write", "unknown", 2, "b", 5, 6),
    did("check", "valid", 2, "b", 6),
    Record("lost", "n", "b", 2, 10, 10.01),
    Record("acquire", "n", "c", 0, 0, 3, "cancelled", "ask-c", limit=5),
    Record("seen", "n", "c", 0, 4, 4, "", "ask-c"),
    Record("took", "n", "d", 0, 10, 12, limit=5),
    granted(9, "d", 10, 12),
]
RESOURCE = Resource(2, [(1, "a"), (2, "b")])


def test_a_good_history_is_accepted() -> None:
    assert_clean(GOOD, {"n": RESOURCE})
    assert check([*GOOD], {"n": Resource(1, [(1, "a")])}) == []  # an unknown write need not have happened


BAD = {
    "token twice": [granted(2, "b", 0, 20)],
    "token order": [granted(8, "e", 13, 14)],
    "not in the store": [Record("check", "n", "b", 2, 7, 7, "valid", stored=7)],
    "overlap": [did("check", "valid", 1, "a", 4.9)],
    "revived": [did("check", "invalid", 2, "b", 5.5)],
    "theft": [did("release", "released", 1, "a", 6, 7)],
    "lost twice": [Record("lost", "n", "b", 2, 10, 10.02)],
    "lost late": [Record("lost", "n", "d", 9, 20, 20.06)],
    "lost after release": [Record("lost", "n", "a", 1, 6, 6)],
    "not settled": [Record("seen", "n", "c", 0, 8.5, 8.5, "", "ask-c")],
    "too slow": [Record("took", "n", "d", 0, 10, 15.5, limit=5)],
    "left over": [Record("left", "n", outcome="a row")],
    "lost write": [did("write", "accepted", 1, "a", 3)],
}


@pytest.mark.parametrize("rule", BAD)
def test_a_bad_history_is_refused(rule: str) -> None:
    assert {each.rule for each in check([*GOOD, *BAD[rule]], {"n": RESOURCE})} == {rule}


def rules(*more: Record, **options: bool) -> set[str]:
    return {each.rule for each in check([*GOOD, *more], {"n": RESOURCE}, **options)}


def test_lease_that_is_used_after_its_end_is_found() -> None:
    assert rules(did("renew", "renewed", 1, "a", 6, 7)) == {"revived", "theft"}
    assert rules(did("check", "valid", 1, "a", 5.1), exclusive=False) == {"revived"}, "after its release"
    assert rules(did("check", "valid", 2, "b", 10.1), exclusive=False) == {"revived"}, "after its loss"


def test_trust_after_a_refused_renewal_is_found() -> None:
    """The store has said that it is another's: whoever goes on to believe in it has not listened."""
    refused = did("renew", "refused", 9, "d", 20, 20.1)
    assert rules(refused, did("check", "valid", 9, "d", 20.2)) == {"revived"}
    assert rules(refused, did("renew", "renewed", 9, "d", 20.2)) == {"revived"}
    assert rules(refused, did("check", "valid", 9, "d", 20.05)) == set()  # it had not heard yet
    assert rules(did("release", "refused", 9, "d", 20), did("check", "valid", 9, "d", 20.2)) == {"revived"}


@pytest.mark.parametrize("op", ["release", "over"])
def test_hold_after_an_ended_attempt_is_found(op: str) -> None:
    ended = Record(op, "n", "d", 9, 20, 20, "unknown" if op == "release" else "", "ask-d", 5)
    assert rules(ended, Record("seen", "n", "d", 9, 25.1, 25.1, "", "ask-d")) == {"not settled"}
    assert rules(ended, Record("seen", "n", "d", 9, 24.9, 24.9, "", "ask-d")) == set()
    assert rules(ended, Record("seen", "n", "e", 9, 25.1, 25.1, "", "ask-e")) == set()


def test_what_was_broken_is_not_renewed() -> None:
    broken = Record("broken", "n", "d", 9, 20, 20, "told", limit=3)
    assert rules(broken, did("check", "valid", 9, "d", 22.9)) == set()
    assert rules(broken, did("check", "valid", 9, "d", 23.1)) == {"revived"}


def test_force_is_the_exception_to_exclusion() -> None:
    """For the one that it was taken from, until its deadline; and for nobody else."""
    later, old = granted(10, "e", 20.5, 20.6), did("check", "valid", 9, "d", 21)
    new = did("check", "valid", 10, "e", 22)
    assert rules(later, old, new) == {"overlap"}
    broken = Record("broken", "n", "d", 9, 20, 20, "by force", limit=3)
    assert rules(broken, later, old, new) == set()
    assert rules(broken._replace(outcome="told"), later, old, new) == {"overlap"}
    assert rules(broken, later, did("check", "valid", 9, "d", 23.1), new) == {"revived"}
    assert rules(broken, later, did("check", "valid", 2, "b", 21), new) == {"overlap", "revived"}, "it was another's"
    assert rules(broken._replace(returned=21.5), later, old, new) == {"overlap"}, "it was before"


def test_trust_of_a_member_that_has_gone_is_found() -> None:
    gone = Record("gone", "n", "d", 9, 20, 20)
    assert rules(gone, did("check", "valid", 9, "d", 20.1)) == {"not gone"}
    assert rules(gone, did("check", "valid", 9, "d", 19.9), did("check", "invalid", 9, "d", 21)) == set()
    assert rules(gone, did("check", "valid", 9, "d", 20.1), exclusive=False) == set()


def test_nobody_is_overtaken() -> None:
    def queued(token: int, asked: float, placed: float) -> Record:
        return Record("queued", "n", invoked=asked, returned=placed, ask=f"ask-{token}")

    later = [granted(10, "e", 20, 21), granted(11, "f", 20, 22)]
    assert rules(*later, queued(11, 20, 20.1), queued(10, 20.2, 20.3), in_turn=True) == {"out of turn"}
    assert rules(*later, queued(11, 20, 20.1), queued(10, 20.2, 20.3)) == set()
    assert rules(*later, queued(11, 20, 20.3), queued(10, 20.2, 20.4), in_turn=True) == set()  # nobody knows
    assert rules(*later, queued(10, 20, 20.1), queued(11, 20.2, 20.3), in_turn=True) == set()
    assert rules(later[0], queued(11, 20, 20.1), queued(10, 20.2, 20.3), in_turn=True) == set()  # it gave up


def test_what_is_done_once_has_one_outcome() -> None:
    done = Record("done", "n", "b", 2, 6, 6, "done")
    assert rules(done, done) == set()
    assert rules(done, done._replace(outcome="failed")) == {"done twice"}
    assert rules(done, done._replace(token=9, owner="d")) == {"done twice"}
    assert rules(done._replace(token=1, owner="a")) == {"done twice"}, "another wrote later"


def test_overlap_is_found_by_a_single_check() -> None:
    """A lease that is valid has been so since it was granted; and whoever comes later has the name."""
    assert rules(granted(10, "e", 20, 21), did("check", "valid", 10, "e", 25), granted(11, "f", 20, 22),
                 did("check", "valid", 11, "f", 23)) == {"overlap"}  # fmt: skip
    assert rules(granted(10, "e", 20, 21), did("check", "valid", 9, "d", 30)) == {"overlap"}


def test_loss_that_was_seen_and_not_told_is_found() -> None:
    found_out = [did("check", "invalid", 9, "d", 20), did("release", "refused", 9, "d", 21)]
    assert rules(*found_out) == {"lost untold"}
    assert rules(*found_out, Record("lost", "n", "d", 9, 19.99, 20)) == set()
    assert rules(found_out[0]) == set()  # it may have been killed


def test_write_after_a_known_loss_is_found() -> None:
    late = did("write", "refused", 2, "b", 11)
    assert rules(late) == set()
    assert rules(late, careful=True) == {"write after loss"}


@pytest.mark.parametrize("nonsense", [did("aquire", "granted", 3, "c", 1), did("acquire", "grant", 3, "c", 1)])
def test_nonsense_is_not_a_good_history(nonsense: Record) -> None:
    with pytest.raises(ValueError, match="has no"):
        check([nonsense])


@pytest.mark.parametrize(
    ("rule", "resource"),
    [
        ("resource order", Resource(2, [(2, "b"), (1, "a")])),
        ("resource order", Resource(2, [(1, "b"), (2, "b")])),
        ("lost write", Resource(1, [(1, "a"), (2, "b")])),
        ("lost write", Resource(1, [(2, "b")])),
        ("resource order", Resource(2, [(1, "a"), (7, "b")])),
        ("unknown write", Resource(3, [(1, "a"), (2, "b"), (2, "b")])),
    ],
    ids=["goes back", "another's token", "a lost update", "a lost write", "nobody's token", "an invented write"],
)
def test_a_bad_resource_is_refused(rule: str, resource: Resource) -> None:
    assert rule in {each.rule for each in check(GOOD, {"n": resource})}


def test_overlap_is_allowed_for_a_store_that_forgets() -> None:
    overlapping = [*GOOD, *BAD["overlap"]]
    assert check(overlapping, exclusive=False) == []
    assert check([*GOOD, *BAD["token order"]], exclusive=False) != []
    assert check(overlapping, limit=2) == []
    assert check(overlapping, limit={"n": 2}) == []
    assert check(overlapping, limit={"m": 2}) != []


def test_a_check_proves_no_more_than_its_instant() -> None:
    """One check that takes a while was right at some moment of it, nobody knows which."""
    assert check([*GOOD, did("check", "valid", 3, "x", 2, 8)]) == []


def test_histories_are_kept_in_files(tmp_path: Path) -> None:
    now = iter([2.0, 1.0])
    first, second = (History(tmp_path / each, now=lambda: next(now)) for each in ("a", "b"))
    first.add("check", "n", owner="a", token=1, outcome="valid")
    second.add("acquire", "n", owner="b", invoked=0.5, outcome="busy")
    for each in (first, second):
        each.close()
    with (tmp_path / "b").open("a") as file:
        file.write('["write", "n", "b"')  # killed in the middle of a line
    found = load([tmp_path / "a", tmp_path / "b"])
    assert [(each.op, each.invoked, each.returned) for each in found] == [("acquire", 0.5, 1.0), ("check", 2.0, 2.0)]
    assert found[1:] == list(first)


def test_permits_count_as_held_until_their_release() -> None:
    """Of a semaphore there may be no check: three who gave back at 10 what each had from 1 on were three at once."""
    three = [granted(token, f"o{token}", 0, 1) for token in (1, 2, 3)]
    gave = [did("release", "released", token, f"o{token}", 10, 11) for token in (1, 2, 3)]
    assert check([*three, *gave], limit=3) == []
    assert {each.rule for each in check([*three, *gave], limit=2)} == {"overlap"}


def test_a_grant_without_a_token_is_nonsense() -> None:
    with pytest.raises(ValueError, match="without a token"):
        check([granted(0, "a", 0, 1)])


def test_a_writer_beside_a_reader_is_an_overlap() -> None:
    reader, writer = granted(1, "r", 0, 1), granted(2, "w", 0, 2)._replace(weight=10)
    said = [did("check", "valid", 1, "r", 5), did("check", "valid", 2, "w", 5)]
    assert {each.rule for each in check([reader, writer, *said], limit=10)} == {"overlap"}
    assert check([reader, writer._replace(weight=1), *said], limit=10) == []

"""Members with heartbeats: who joins, leaves and fails, and to whom a key belongs. D4, D8."""

from __future__ import annotations

from typing import Any

import pytest

from ...errors import AcquireTimeout, ShuttingDown
from ..handles import eventually
from ..scene import Scene
from .fixtures import needs


@needs("semaphore")
def test_members_join_and_leave(scene: Scene) -> None:
    """Reference, group: join(data), members() in order, leave."""
    name = scene.name()
    everyone = [scene.connect(owner=f"m{number}", ttl=30) for number in range(3)]
    groups = [locks.group(name) for locks in everyone]
    assert list(groups[0].members()) == []
    memberships = [group.join({"port": number}) for number, group in enumerate(groups)]
    for group in groups:
        found = group.members()
        assert [each.owner for each in found] == ["m0", "m1", "m2"]
        assert [each.data for each in found] == [{"port": 0}, {"port": 1}, {"port": 2}]
        assert [each.id for each in found] == [each.token for each in memberships]
        assert all(60 < (each.expires - each.joined).total_seconds() < 120 for each in found)
    assert memberships[1].release()
    groups[0].leave()
    assert [each.owner for each in groups[1].members()] == ["m2"]
    assert not memberships[0].valid
    again = groups[0].join()
    assert [each.owner for each in groups[1].members()] == ["m2", "m0"]
    assert again.token > memberships[2].token
    groups[0].leave()
    groups[0].leave()
    groups[2].leave()


@needs("semaphore")
def test_member_changes_its_data_while_joined(scene: Scene) -> None:
    """Reference, group: update(data) is told as such; the membership goes on, with a new token, and ends as before."""
    name = scene.name()
    watching, locks = scene.connect(ttl=30), scene.connect(owner="member", ttl=30)
    watcher, group = watching.group(name, look=0.1), locks.group(name)
    with pytest.raises(LookupError, match="join"):
        group.update({"port": 0})
    membership = group.join({"port": 1})
    before = membership.token
    watcher.watch()
    eventually(lambda: watcher.seen == [("joined", "member")])
    group.update({"port": 2})
    [member] = watcher.members()
    assert (member.owner, member.data, member.id) == ("member", {"port": 2}, membership.token)
    assert membership.token > before
    assert (membership.valid, membership.data) == (True, {"port": 2})
    eventually(lambda: watcher.seen[1:] == [("updated", "member")])
    membership.renew()
    assert membership.release()
    eventually(lambda: watcher.seen[2:] == [("left", "member")])
    assert not scene.held(name)


@needs("semaphore")
def test_callback_that_is_taken_back_is_not_called_any_more(scene: Scene) -> None:
    name = scene.name()
    locks, other = scene.connect(ttl=30), scene.connect(owner="other", ttl=30)
    group, members = locks.group(name, look=0.1), other.group(name)
    group.watch()
    members.join()
    eventually(lambda: group.seen == [("joined", "other")])
    group.take_back["joined"]()
    group.take_back["joined"]()
    members.leave()
    eventually(lambda: group.seen[1:] == [("left", "other")])
    members.join()
    members.leave()
    eventually(lambda: len(group.seen) > 2 or not members.members())
    for take_back in group.take_back.values():
        take_back()
    seen = len(group.seen)
    members.join()
    group.watch()  # the one that read the members for the others has ended, or goes on
    eventually(lambda: group.seen[seen:] == [("joined", "other")])
    members.leave()


@needs("semaphore")
def test_unique_member_is_refused_while_there_is_one_of_its_owner(scene: Scene) -> None:
    name = scene.name()
    first, second = scene.connect(owner="a", ttl=30).group(name), scene.connect(owner="a", ttl=30).group(name)
    other = scene.connect(owner="b", ttl=30).group(name)
    membership = first.join(unique=True)
    other.join(unique=True)
    with pytest.raises(AcquireTimeout, match="'a' already") as caught:
        second.join(unique=True)
    assert caught.value.holder is not None
    assert caught.value.holder.token == membership.token
    assert [each.owner for each in other.members()] == ["a", "b"]
    first.leave()
    second.join(unique=True)
    assert sorted(each.owner for each in other.members()) == ["a", "b"]
    second.leave()
    other.leave()


@needs("semaphore")
def test_who_joined_left_and_failed_is_told_once(scene: Scene) -> None:
    """Reference, group: callbacks in order and once; failure after the missed beats; a failed member knows it too."""
    beat = max(0.5, scene.ttl / 2)
    for longer in (1, 2, 4, 8):
        if _joined_left_failed(scene, longer * beat):
            return
    pytest.fail("it failed each time before anybody had looked: the machine was too busy to see it")


def _joined_left_failed(scene: Scene, beat: float) -> bool:
    """False when the machine stood still for longer than a member lives that does not beat."""
    name = scene.name()
    options: dict[str, Any] = {"heartbeat": 30, "misses": 3, "look": 0.2}
    watching, first = scene.connect(owner="watching", ttl=30), scene.connect(owner="first", ttl=30)
    silent, faults = scene.faulty(owner="silent", ttl=30)
    group = watching.group(name, **options)
    group.join()
    group.watch()
    eventually(lambda: group.seen == [("joined", "watching")])
    there = first.group(name, **options)
    there.join()
    eventually(lambda: group.seen[1:] == [("joined", "first")])
    there.leave()
    eventually(lambda: group.seen[2:] == [("left", "first")])
    membership = silent.group(name, **{**options, "heartbeat": beat}).join()
    eventually(lambda: group.seen[3:] or membership.ran_out())
    if not group.seen[3:]:
        return False
    faults.lose_request("*", noticed_after=0.05)
    eventually(lambda: len(group.seen) > 4, 4 * beat + 30)
    assert group.seen[3:] == [("joined", "silent"), ("failed", "silent")]
    assert not membership.valid
    assert [each.owner for each in group.members()] == ["watching"]
    faults.mend()
    late = watching.group(name, **options)
    late.watch()
    eventually(lambda: late.seen == [("joined", "watching")])
    assert len(group.seen) == 5
    return True


@needs("semaphore")
def test_a_key_belongs_to_one_member(scene: Scene) -> None:
    """Reference, group: owner_of(key) is the same for everybody, and moves only to and from who came or went."""
    name = scene.name()
    groups = [scene.connect(owner=f"m{number}", ttl=30).group(name) for number in range(3)]
    assert groups[0].owner_of("k") is None
    for group in groups:
        group.join()
    keys = [f"key {number}" for number in range(60)]
    before = {key: groups[0].members().owner_of(key).owner for key in keys}
    assert set(before.values()) == {"m0", "m1", "m2"}
    for key in keys[:5]:
        assert {group.owner_of(key).owner for group in groups} == {before[key]}
    groups[1].leave()
    after = {key: groups[0].members().owner_of(key).owner for key in keys}
    assert all(after[key] == before[key] for key in keys if before[key] != "m1")
    groups[0].leave()
    groups[2].leave()


@needs("semaphore")
def test_draining_leaves_the_groups(scene: Scene) -> None:
    """Reference, drain; D9: deregistered last, and told as left, not as failed; joining is refused."""
    name = scene.name()
    watching, locks = scene.connect(owner="watching", ttl=30), scene.connect(owner="leaving", ttl=30)
    group = watching.group(name, look=0.2)
    leaving = locks.group(name)
    membership = leaving.join()
    lease = locks.lock(scene.name()).acquire()
    group.watch()
    eventually(lambda: group.seen == [("joined", "leaving")])
    drain = locks.start_drain(30)
    eventually(lambda: locks.refuses("refused"))
    with pytest.raises(ShuttingDown):
        leaving.join()
    assert membership.valid, "a member until its work is done"
    assert lease.release()
    assert drain.result() == []
    assert membership.lost_reason is None
    eventually(lambda: group.seen[1:] == [("left", "leaving")])


def test_a_group_is_no_lock(scene: Scene) -> None:
    """Reference: another shape of a name in use is a ValueError; wrong options are too."""
    locks, name = scene.connect(ttl=30), scene.name()
    if "semaphore" in scene.store.lacks:
        with pytest.raises(ValueError, match="group"):
            locks.group(name)
        return
    group = locks.group(name)
    group.join()
    with pytest.raises(ValueError, match="group"):
        locks.lock(name).acquire()
    group.leave()
    locks.lock(name).acquire().release()
    for options, ttl in (({}, 90), ({"kind": "resource"}, 30), ({"kind": "resource", "heartbeat": 2, "misses": 4}, 8)):
        membership = locks.group(name, **options).join()
        assert membership.ttl == ttl
        membership.release()
    for wrong in ({"heartbeat": 0}, {"misses": 1}, {"misses": 2.5}, {"heartbeat": 1, "look": 2}):
        with pytest.raises((ValueError, TypeError)):
            locks.group(name, **wrong)


@needs("shared", "semaphore")
@pytest.mark.slow
def test_the_leases_of_a_failed_member_are_listed(scene: Scene) -> None:
    """What a member that was killed had held can be found by its owner."""
    name, beat = scene.name(), 1.0
    locks = scene.connect(ttl=30)
    group = locks.group(name, heartbeat=beat, look=0.2)
    dead = scene.process()
    dead.do("join", name=name, data="dead", heartbeat=beat)
    held = [scene.name() for _ in range(2)]
    (owner,) = {dead.do("acquire", name=each, ttl=20)["owner"] for each in held}
    group.watch()
    eventually(lambda: group.seen == [("joined", owner)])
    (member,) = group.members()
    dead.kill()
    eventually(lambda: group.seen[1:] == [("failed", owner)], 3 * beat + 15)
    assert sorted(each.name for each in group.leases_of(member)) == sorted(held)
    for each in held:
        locks.break_lease(each, force=True)

"""Workers that share out keys among themselves: each key has one owner, and moves only when its owner goes."""

import leasehold

everyone = [leasehold.connect(owner=f"worker-{number}") for number in range(3)]
groups = [locks.group("workers") for locks in everyone]
for number, group in enumerate(groups):
    group.join({"port": 8000 + number})

keys = [f"customer:{number}" for number in range(12)]
before = {key: groups[0].members().owner_of(key).owner for key in keys}
groups[2].leave()
after = {key: groups[0].members().owner_of(key).owner for key in keys}
for key in keys:
    print(key, before[key], "" if before[key] == after[key] else f"-> {after[key]}")
assert all(before[key] == after[key] or before[key] == "worker-2" for key in keys)
for locks in everyone:
    locks.close()

"""What is read of etcd without holding anything: listings and notes."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.log import WARNING, log
from ...core.protocol import Holding, Steps
from ...errors import StoreNotReady
from . import wire
from .permit import HELD, VERSION, StoredPermit, read_permit
from .session import MOST_OPERATIONS, EtcdSession
from .wire import EQUAL, MOD, KeyValue, compare, delete, get, put


class Listing:
    """The operations ``scan``, ``inspect``, ``read_note`` and ``write_note``."""

    def __init__(self, session: EtcdSession) -> None:
        self._session = session

    def scan(self, prefix: str, after: str, count: int) -> Steps[tuple[Sequence[Holding], str | None]]:
        """A damaged record is about one name: it is left out, and does not hide the others."""
        start = self._session.base + b"h/"
        past = start + after.encode(errors="surrogateescape") + b"\1" if after else b""
        first = start + prefix.encode()
        page = yield from self._session.range(max(first, past), _after(first), limit=count)
        found, upto = page.found, None
        if page.more:
            names = [key.key[len(start) :].partition(b"\0")[0] for key in found]
            upto = names[-1]
            if names[0] == upto:  # one name fills the page
                found = (yield from self._session.range(start + upto, start + upto + b"\1")).found
            else:
                found = [key for key, name in zip(found, names, strict=True) if name != upto]
                upto = next(name for name in reversed(names) if name != upto)
        holders = [permit for key in found if (permit := _read_or_skip(key)) is not None]
        return (yield from self._listed(holders)), None if upto is None else upto.decode(errors="surrogateescape")

    def inspect(self, name: str) -> Steps[Sequence[Holding]]:
        page = yield from self._session.range(*self._session.holders_of(name))
        return (yield from self._listed([read_permit(key) for key in page.found]))

    def _listed(self, holders: list[StoredPermit]) -> Steps[list[Holding]]:
        names = list(dict.fromkeys(holder.name for holder in holders))
        waiters: dict[str, int] = {}
        for start in range(0, len(names), MOST_OPERATIONS):
            some = names[start : start + MOST_OPERATIONS]
            counts = [get(*self._session.waiters_of(name), count_only=True) for name in some]
            result = wire.read_txn((yield wire.txn([], [*counts, get(self._session.epoch_key)], [])))
            *pages, epoch = result.pages
            self._session.learn_epoch(epoch)  # another than before, if the cluster was made anew
            waiters.update(zip(some, (page.total for page in pages), strict=True))
        return (yield from self._session.seen(holders, waiters))

    def read_note(self, name: str) -> Steps[str | None]:
        page = yield from self._session.range(self._note_key(name))
        if not page.found:
            return None
        version, _, text = page.found[0].value.partition(b" ")
        if version != b"%d" % VERSION:
            raise StoreNotReady(f"the note of {name!r} was written by a newer leasehold: upgrade leasehold")
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise StoreNotReady(f"the note of {name!r} is not text: remove {page.found[0].key!r}") from error

    def write_note(self, name: str, attempt: str, token: int, text: str | None) -> Steps[bool]:
        key = self._note_key(name)
        change = delete(key) if text is None else put(key, b"%d %s" % (VERSION, text.encode()))
        epoch = yield from self._session.known_epoch()
        while True:
            holder = yield from self._session.holder(name, attempt)
            if holder is None or holder.create + epoch != token or holder.state != HELD:
                return False
            unchanged = [compare(EQUAL, MOD, holder.key, holder.mod)]
            if wire.read_txn((yield wire.txn(unchanged, [change], []))).succeeded:
                return True

    def _note_key(self, name: str) -> bytes:
        return self._session.base + b"n/" + name.encode()


def _read_or_skip(key: KeyValue) -> StoredPermit | None:
    try:
        return read_permit(key)
    except StoreNotReady as error:
        log(WARNING, "left out of the listing: %s", error)
        return None


def _after(prefix: bytes) -> bytes:
    """The end of the range of keys that start with the prefix."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))  # never 0xff: no UTF-8 text has that

"""What the MongoDB store asks of its drivers, which answer it: see :mod:`leasehold.core.protocol`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Document = Mapping[str, Any]
NOTHING: Document = {}


class Sender(NamedTuple):
    """Answered with the address of whoever asks, where to call it, and a number that rises with every command of it."""


class Change(NamedTuple):
    """Apply a pipeline to the document of a name, if more is true of it (``where``) than that it is there.

    Answered with the document after that, without its queue; in it the server's time as ``now``, and, if asked for one
    ``waiter``, how many ``waiters`` there are and its ``place``. The answer to a command that pymongo has retried is
    the document as it is. None: there is no such document, or, with ``upsert``, another command made it at the same
    time.
    """

    name: str
    stages: Sequence[Document]
    upsert: bool = False
    where: Mapping[str, Any] = NOTHING
    waiter: str | None = None


class ChangeMany(NamedTuple):
    """Apply a pipeline to a document each; answered with the number of documents that have changed."""

    changes: Sequence[Change]


class Find(NamedTuple):
    """Answered with the documents of these names, with ``now``; ``settled``: as no election can undo them."""

    names: Sequence[str]
    settled: bool = False


class FindPage(NamedTuple):
    """Answered with documents of names that start with ``prefix``, after ``after``, in order, ``most`` of them."""

    prefix: str
    after: str
    most: int


class Ring(NamedTuple):
    """Pass on the call that a change has left in its document. Never fails: a call is a hint."""

    call: str


class Tidy(NamedTuple):
    """See that the TTL index is there. Never fails: a warning at most."""

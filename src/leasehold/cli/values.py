"""The values of options: each function makes one of a word of the command line, or raises ValueError."""

from __future__ import annotations

from ..core import durations


def shown(word: str) -> str:
    """A word of the command line, quoted for a message. A URL is cut after its scheme: it may contain a password."""
    scheme, separator, _ = word.partition("://")
    if separator:
        return f"{scheme}://…"
    return "…@…" if ":" in word.partition("@")[0] and "@" in word else repr(word)  # user:password@host


def text(word: str) -> str:
    return word


def names(word: str) -> list[str]:
    """Names, separated by commas."""
    found = [name for name in word.split(",") if name]
    if not found:
        raise ValueError("a name is missing: use NAME or NAME,NAME")
    return found


def duration(word: str) -> float:
    """Seconds: ``30``, ``30s``, ``500ms``, ``5m``, ``1.5h``, ``2d``."""
    seconds = durations.parse(word)
    if seconds is None:
        raise ValueError(f"invalid duration {shown(word)}: {durations.USE}")
    return seconds


def period(word: str) -> float | str:
    """``minute``, ``hour``, ``day``, or a duration."""
    return word if word in ("minute", "hour", "day") else duration(word)


def ttl(word: str) -> float:
    seconds = duration(word)
    if not seconds:
        raise ValueError(f"invalid duration {shown(word)}: it must be above 0")
    return seconds


def processes(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 2 <= int(word) <= 256):
        raise ValueError(f"invalid number {shown(word)}: use 2 to 256 processes")
    return int(word)


def leases(word: str) -> int:
    if not (word.isascii() and word.isdigit() and 1 <= int(word) <= 100_000):
        raise ValueError(f"invalid number {shown(word)}: use 1 to 100000 leases")
    return int(word)


def exit_code(word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) <= 255):
        raise ValueError(f"invalid exit code {shown(word)}: use 0 to 255")
    return int(word)


def count(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ValueError(f"invalid number {shown(word)}: use 0 or more")
    return int(word)


def limit(word: str) -> int:
    if not (word.isascii() and word.isdigit() and int(word) >= 1):
        raise ValueError(f"invalid number {shown(word)}: use 1 or more")
    return int(word)


class OneOf:
    """Parses a word that must be one of ``words``. The completions offer these."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __call__(self, word: str) -> str:
        if word not in self.words:
            raise ValueError(f"unknown value {shown(word)}: use {', '.join(self.words[:-1])} or {self.words[-1]}")
        return word

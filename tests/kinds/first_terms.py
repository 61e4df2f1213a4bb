"""More time for whoever is let in, in the processes that some tests start: see ``lengthen``.

Usually that one has FIRST_TERM to come, or has to stand anew; on a busy machine some do. Where it is judged who came
in when, that would excuse what a fault of the queue does too.
"""

from __future__ import annotations

import sys
from hashlib import sha1

from leasehold.core import timing


def lengthen(term: float, url: str) -> None:
    """A first term of so many seconds, in this process, for a store of that URL.

    To be said before anything of leasehold is loaded that has taken the usual one from there. Never in pytest's own."""
    assert "leasehold.core.registry" not in sys.modules, "it is too late for that"
    usual, timing.FIRST_TERM = timing.FIRST_TERM, term
    if not url.startswith(("redis:", "redlock:")):
        return
    from leasehold.stores.redis import scripts

    before, after = (f" = {seconds * 1e6:.0f}, ".encode() for seconds in (usual, term))
    for script in scripts.ALL:
        assert before in script.text or b"FIRST_TERM" not in script.text
        script.text = script.text.replace(before, after)
        script.sha = sha1(script.text, usedforsecurity=False).hexdigest().encode()

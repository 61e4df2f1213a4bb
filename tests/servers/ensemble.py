"""Several servers that are one service: a replica set, a cluster, a quorum."""

from collections.abc import Sequence
from typing import Self

from .base import Server
from .process import wait_until


class Ensemble:
    """Its members are ordinary servers, each of which a test may pause or kill by itself.

    Each kind says what joins the members (`form`, once, after the first start) and who `leads`.
    """

    members: Sequence[Server]
    _formed = False

    @property
    def url(self) -> str:
        addresses = ",".join(member.address for member in self.members)
        return f"{self.members[0].kind}://{addresses}"

    def form(self) -> None:
        """Make one service of the members, where they don't find together by themselves."""

    def leads(self, member: Server) -> bool:
        """Whether this member says of itself that it leads; False when it doesn't answer."""
        raise NotImplementedError

    def start(self) -> Self:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_ready()
        if not self._formed:
            self.form()
            self._formed = True
        self.settle()
        return self

    def settle(self) -> None:
        """Wait until the members work as one."""
        self.leader()

    def leader(self, *, other_than: Server | None = None, within: float = 60.0) -> Server:
        """The member that leads, waited for; `other_than` one that was paused or killed."""
        found: list[Server] = []

        def seen() -> bool:
            found[:] = [m for m in self.members if m is not other_than and self.leads(m)]
            return len(found) == 1

        try:
            wait_until(seen, f"a leader of {self!r}", within)
        except TimeoutError as error:
            logs = "\n".join(f"{member!r}: {member.log_tail()}" for member in self.members)
            raise TimeoutError(f"{error}\n{logs}") from None
        return found[0]

    def stop(self) -> None:
        for member in self.members:
            member.stop()

    def close(self) -> None:
        for member in self.members:
            member.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

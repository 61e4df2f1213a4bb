"""Members of a cluster in network namespaces of their own: each can be cut off from the others, and from us.

Two networks join them: one for their clients (this process among them), one for themselves. Needs root and ``ip``.
"""

import subprocess
from collections.abc import Sequence
from typing import Self

from . import ports
from .base import Server
from .wire import HOST


def _ip(*words: str, quietly: bool = False) -> None:
    subprocess.run(["ip", *words], check=not quietly, capture_output=True)


class Networks:
    """``members`` namespaces. Addresses: 10.A.B.n for clients, 10.A.B+1.n among the members.

    Which ones follows from a port that is ours meanwhile: no other test run has the same."""

    def __init__(self, members: int) -> None:
        self.members = range(1, members + 1)
        self._port = ports.take()
        self._tag = f"lh{self._port}"
        number = self._port - ports.RANGE.start
        self._net, self._first = f"10.{60 + number // 128}", 2 * (number % 128)

    def client_address(self, member: int) -> str:
        return self._address(0, member)

    def peer_address(self, member: int) -> str:
        return self._address(1, member)

    def before(self, member: int) -> list[str]:
        """What starts a program in the namespace of a member."""
        return ["ip", "netns", "exec", self._space(member)]

    def cut(self, member: int) -> None:
        """Off from the other members; its clients still reach it."""
        _ip("link", "set", self._link("p", member), "down")

    def mend(self, member: int) -> None:
        _ip("link", "set", self._link("p", member), "up")

    def __enter__(self) -> Self:
        try:
            for net, which in (("c", 0), ("p", 1)):
                bridge = f"{self._tag}{net}"
                _ip("link", "add", bridge, "type", "bridge")
                _ip("link", "set", bridge, "up")
                if net == "c":
                    _ip("address", "add", f"{self._address(0, 254)}/24", "dev", bridge)
                for member in self.members:
                    if net == "c":
                        _ip("netns", "add", self._space(member))
                        _ip("-n", self._space(member), "link", "set", "lo", "up")
                    link, space = self._link(net, member), self._space(member)
                    _ip("link", "add", link, "type", "veth", "peer", "name", f"{net}0", "netns", space)
                    _ip("link", "set", link, "master", bridge, "up")
                    _ip("-n", space, "address", "add", f"{self._address(which, member)}/24", "dev", f"{net}0")
                    _ip("-n", space, "link", "set", f"{net}0", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            _ip("netns", "delete", self._space(member), quietly=True)
        for net in ("c", "p"):
            for member in self.members:
                _ip("link", "delete", self._link(net, member), quietly=True)
            _ip("link", "delete", f"{self._tag}{net}", quietly=True)
        ports.give_back(self._port)

    def _address(self, which: int, host: int) -> str:
        return f"{self._net}.{self._first + which}.{host}"

    def _space(self, member: int) -> str:
        return f"{self._tag}{member}"

    def _link(self, net: str, member: int) -> str:
        return f"{self._tag}{net}{member}"


class Member(Server):
    """One of a cluster: its clients reach it at `host`, the others at `peer_host`; all of them are `together`."""

    host = peer_host = HOST
    together: Sequence[Self]
    _before: Sequence[str] = ()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def before(self) -> list[str]:
        return list(self._before)

    def join(self, together: Sequence[Self], networks: Networks | None) -> None:
        """Before the first start; `networks`: each in a namespace of its own."""
        self.together = together
        if networks is not None:
            number = networks.members[together.index(self)]
            self._before = networks.before(number)
            self.host, self.peer_host = networks.client_address(number), networks.peer_address(number)

"""A file per peer. Each has a class ``Peer(target)``; see :class:`bench.peers.base.Base`."""

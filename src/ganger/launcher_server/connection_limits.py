"""Limits on unauthenticated connections, in total and by address."""

import ipaddress
from collections.abc import Iterator
from typing import Generic, TypeVar

Peer = TypeVar("Peer")


class ConnectionLimits(Generic[Peer]):
    """The unauthenticated peers of a listener by address, the oldest of each address first.

    At most `maximum` in all, and `maximum_per_address` of one address. A new one is always accepted: refusing it would
    let a peer that occupies all slots keep everyone else out.
    """

    def __init__(self, maximum: int, maximum_per_address: int) -> None:
        self._maximum = maximum
        self._maximum_per_address = maximum_per_address
        self._count = 0
        self._by_address: dict[str, dict[Peer, None]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Peer]:
        for peers in self._by_address.values():
            yield from peers

    def add(self, peer: Peer, address: str) -> Peer | None:
        """Count a new peer; return the one that loses its slot to it, if a limit is exceeded.

        That is the oldest of the new one's address, or else the oldest of the address with the most.
        """
        peers = self._by_address.setdefault(address, {})
        peers[peer] = None
        self._count += 1
        if len(peers) > self._maximum_per_address:
            return self._pop_oldest(address)
        return self.pop() if self._count > self._maximum else None

    def discard(self, peer: Peer, address: str) -> None:
        """Stop counting a peer, if it is counted."""
        peers = self._by_address.get(address, {})
        if peer in peers:
            self._remove(peer, address)

    def pop(self) -> Peer | None:
        """Stop counting the oldest peer of the address with the most, and return it; None if there is none."""
        if not self._by_address:
            return None
        return self._pop_oldest(max(self._by_address, key=lambda address: len(self._by_address[address])))

    def _pop_oldest(self, address: str) -> Peer:
        oldest = next(iter(self._by_address[address]))
        self._remove(oldest, address)
        return oldest

    def _remove(self, peer: Peer, address: str) -> None:
        peers = self._by_address[address]
        del peers[peer]
        self._count -= 1
        if not peers:
            del self._by_address[address]


def counted_address(host: str) -> str:
    """Return the address for which a peer counts: of IPv6 its network of 64 bits, all of which one machine has."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))

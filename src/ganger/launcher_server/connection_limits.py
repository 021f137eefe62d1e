"""Limits on connections that have yet to show a token. Pure; `acceptor` asks for every connection over TCP."""

import ipaddress
from collections.abc import Iterator
from typing import Generic, TypeVar

Stranger = TypeVar("Stranger")


class ConnectionLimits(Generic[Stranger]):
    """The strangers of a listener, by address, each address with its oldest first.

    At most `most` in all, and `most_of_address` of one address. A newcomer is always taken: refusing it would let
    whoever holds all places keep everybody else out.
    """

    def __init__(self, most: int, most_of_address: int) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._count = 0
        self._by_address: dict[str, dict[Stranger, None]] = {}

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Stranger]:
        for strangers in self._by_address.values():
            yield from strangers

    def add(self, stranger: Stranger, address: str) -> Stranger | None:
        """Count a newcomer. Return the stranger that loses its place to it, if a limit is exceeded: the oldest of the
        newcomer's address, or else the oldest of the address with the most."""
        strangers = self._by_address.setdefault(address, {})
        strangers[stranger] = None
        self._count += 1
        if len(strangers) > self._most_of_address:
            return self._pop_oldest(address)
        return self.pop() if self._count > self._most else None

    def discard(self, stranger: Stranger, address: str) -> None:
        """Stop counting a stranger, if it is counted."""
        strangers = self._by_address.get(address, {})
        if stranger in strangers:
            self._remove(stranger, address)

    def pop(self) -> Stranger | None:
        """Stop counting the oldest stranger of the address with the most, and return it; None when there is none."""
        if not self._by_address:
            return None
        return self._pop_oldest(max(self._by_address, key=lambda address: len(self._by_address[address])))

    def _pop_oldest(self, address: str) -> Stranger:
        oldest = next(iter(self._by_address[address]))
        self._remove(oldest, address)
        return oldest

    def _remove(self, stranger: Stranger, address: str) -> None:
        strangers = self._by_address[address]
        del strangers[stranger]
        self._count -= 1
        if not strangers:
            del self._by_address[address]


def counted_address(host: str) -> str:
    """Return the address that a peer counts for: of IPv6 its network of 64 bits, since one machine has all of that."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))

"""The hosts, ports and addresses that a worker may reach through its proxy."""

import fnmatch
from typing import NamedTuple

from standfast.base.network import Address, is_own, is_public, parse_address, unwrap_address

_DEFAULT_PORTS = (80, 443)


class AllowedHost(NamedTuple):
    """One entry of the list: a name or pattern, or an address. Without a port it allows 80 and 443."""

    name: str
    address: Address | None
    port: int | None

    @classmethod
    def parse(cls, entry: str) -> "AllowedHost":
        """Parse ``host``, ``host:port``, an address, ``address:port`` or ``[IPv6 address]:port``. Raises ValueError."""
        address = parse_address(entry)
        if address is not None or ":" not in entry:
            return cls(entry.lower(), address, None)
        name, _, digits = entry.rpartition(":")
        port = int(digits) if digits.isascii() and digits.isdigit() else 0
        if not 0 < port < 65536:
            raise ValueError(f"{entry!r} does not end with a port")
        if name.startswith("[") and name.endswith("]") and parse_address(name[1:-1]) is not None:
            name = name[1:-1]
        return cls(name.lower(), parse_address(name), port)

    def matches_name(self, host: str) -> bool:
        return fnmatch.fnmatchcase(host.lower(), self.name)

    def matches_port(self, port: int) -> bool:
        return port in _DEFAULT_PORTS if self.port is None else port == self.port

    def names_address(self, address: Address) -> bool:
        """Whether the entry is this very address; ``localhost`` stands for the loopback addresses."""
        return self.address == address or (self.name == "localhost" and address.is_loopback)


class AllowedHosts:
    """Decides about names before they are resolved, and about addresses before they are connected to.

    A name must not lead to the machine itself or to its network: an address that is not public is refused, whatever
    name it has, unless the list contains that address.
    """

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._entries = tuple(AllowedHost.parse(entry) for entry in entries)

    def allows_host(self, host: str, port: int) -> bool:
        return any(entry.matches_name(host) and entry.matches_port(port) for entry in self._entries)

    def allows_address(self, address: Address, port: int) -> bool:
        address = unwrap_address(address)
        if is_public(address) and not is_own(address):
            return True
        return any(entry.names_address(address) and entry.matches_port(port) for entry in self._entries)

"""The hosts, ports and addresses that a worker may reach through its proxy."""

import fnmatch
import ipaddress
import socket
from typing import NamedTuple

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_DEFAULT_PORTS = (80, 443)
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# All that is routed in the Internet. What is_global leaves out of it are the special networks that it knows.
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# The second is the host of a virtual machine in Azure, which tells it its configuration.
_SPECIAL_NETWORKS = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24", "3fff::/20"))
)


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


def parse_address(text: str) -> Address | None:
    try:
        return unwrap_address(ipaddress.ip_address(text))
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether this is an address of the Internet: not of this machine, its network, or a group of machines."""
    if isinstance(address, ipaddress.IPv6Address) and address not in _GLOBAL_IPV6:
        return False
    is_special = any(network.version == address.version and address in network for network in _SPECIAL_NETWORKS)
    return address.is_global and not address.is_multicast and not is_special


def is_own(address: Address) -> bool:
    """Whether this is an address of the machine itself: the only one that the kernel reaches from that same address."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # chooses a route and sends nothing
            return bool(probe.getsockname()[0] == str(address))
    except OSError:
        return False  # there is no route, so a connection fails, too


def unwrap_address(address: Address) -> Address:
    """Return the IPv4 address that an IPv6 address stands for: mapped, 6to4 or NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _NAT64:
        return ipaddress.IPv4Address(address.packed[-4:])
    return address.ipv4_mapped or address.sixtofour or address

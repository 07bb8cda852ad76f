"""What leaves this machine: which addresses are of the Internet, and clients that follow no redirects.

A redirect would carry a conversation or credentials to another address.
"""

import ipaddress
import socket
from functools import cache
from typing import Any

from standfast.base.log import hide_in_logs

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# All that is routed in the Internet. What is_global leaves out of it are the special networks that it knows.
_GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
# The second is the host of a virtual machine in Azure, which tells it its configuration.
_SPECIAL_NETWORKS = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24", "3fff::/20"))
)


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


def create_openai_client(library: Any, **options: Any) -> Any:
    """Return an asynchronous client of the openai package. A redirect raises the package's error with its status."""
    client = library.AsyncOpenAI(http_client=library.DefaultAsyncHttpxClient(follow_redirects=False), **options)
    hide_in_logs(client.api_key)
    return client


def make_websocket_connector(library: Any) -> Any:
    """Return ``connect`` of the websockets package, for which a redirect is a failed handshake."""

    class Connect(library.asyncio.client.connect):  # type: ignore[misc]
        def process_redirect(self, exc: Exception) -> Exception:
            return exc

    return Connect


@cache
def get_url_opener() -> Any:
    """Return an opener of ``urllib``. A redirect raises ``urllib.error.HTTPError`` with its status."""
    import urllib.request

    class RefuseRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return urllib.request.build_opener(RefuseRedirects)

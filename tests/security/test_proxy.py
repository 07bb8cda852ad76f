"""The proxy of workers with listed hosts: which names, ports and addresses it connects to, and how many at once."""

import asyncio
import gc
import logging
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import asynccontextmanager

import pytest

from factories.workers import wait_until
from standfast.base.errors import InvalidInput
from standfast.workers import SandboxPolicy
from standfast.workers._host.proxy import HttpProxy


class Upstream:
    """A server on loopback that keeps the heads it receives and answers with ``hello``."""

    def __init__(self) -> None:
        self.heads: list[bytes] = []
        self.port = 0

    async def answer(self, reader, writer):
        try:
            self.heads.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
async def upstream():
    server = Upstream()
    async with await asyncio.start_server(server.answer, "127.0.0.1", 0) as listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield server


@pytest.fixture
def names(monkeypatch):
    """The addresses of names, in place of the DNS. ``lookups`` has every name that was looked up."""
    table: dict[str, list[str]] = {}
    lookups: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *arguments, **options):
        lookups.append(host)
        if host not in table:
            return real(host, port, *arguments, **{**options, "flags": socket.AI_NUMERICHOST})
        families = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in table[host]]
        return [(f, socket.SOCK_STREAM, 6, "", (a, port)) for f, a in zip(families, table[host], strict=True)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    table["localhost"] = ["127.0.0.1"]
    getaddrinfo.table, getaddrinfo.lookups = table, lookups
    return getaddrinfo


@asynccontextmanager
async def open_proxy(*hosts: str):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with HttpProxy.open(listener.detach(), hosts):
        yield port


async def send(port: int, head: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode("latin-1"))
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


async def get(port: int, url: str, *headers: str) -> int:
    reply = await send(port, "\r\n".join([f"GET {url} HTTP/1.1", *headers, "", ""]))
    return int(reply.split()[1])


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "::ffff:127.0.0.1", "0.0.0.0", "::1", "::", "10.1.2.3", "192.168.1.1", "172.16.0.1", "169.254.169.254",
     "fe80::1", "fd00::1", "224.0.0.1", "ff02::1", "100.64.0.1", "2002:7f00:1::", "64:ff9b::7f00:1",
     "::127.0.0.1", "fec0::1", "64:ff9b:1::7f00:1", "::ffff:0:127.0.0.1", "192.0.0.8", "192.88.99.1", "3fff::1",
     "100.100.100.200", "fd00:ec2::254", "192.0.0.192", "168.63.129.16", "2001:0:7f00:1::", "5f00::1", "255.255.255.255"],
)  # fmt: skip
async def test_a_name_that_leads_to_an_address_that_is_not_public_is_refused(names, address):
    names.table["api.attacker.example"] = [address]
    async with open_proxy("*.attacker.example", "*") as port:
        assert await get(port, "http://api.attacker.example/") == 403
        assert (await send(port, "CONNECT api.attacker.example:443 HTTP/1.1\r\n\r\n")).split()[1] == b"403"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "0.0.0.0", "2130706433", "127.1", "0x7f000001", "[::ffff:127.0.0.1]"]
)
async def test_a_pattern_does_not_open_the_machine_itself(names, upstream, host):
    async with open_proxy("*", f"*:{upstream.port}") as port:
        assert await get(port, f"http://{host}:{upstream.port}/") == 403
        assert await get(port, f"http://{host}/") == 403
    assert upstream.heads == []


async def test_a_listed_address_and_port_are_reachable_and_the_name_is_looked_up_once(names, upstream):
    names.table["api.example.org"] = ["10.0.0.1", "127.0.0.1"]
    async with open_proxy(f"api.example.org:{upstream.port}", f"127.0.0.1:{upstream.port}") as port:
        assert await get(port, f"http://api.example.org:{upstream.port}/x?y=1") == 200
    assert names.lookups == ["api.example.org"]
    assert upstream.heads[0].startswith(b"GET /x?y=1 HTTP/1.1\r\n")


@pytest.mark.parametrize("entry", ["localhost:PORT", "127.0.0.1:PORT"])
async def test_localhost_can_be_listed_with_its_port(names, upstream, entry):
    async with open_proxy(entry.replace("PORT", str(upstream.port))) as port:
        host = entry.partition(":")[0]
        assert await get(port, f"http://{host}:{upstream.port}/") == 200
        assert await get(port, f"http://{host}:{upstream.port + 1}/") == 403
        assert await get(port, f"http://{host}/") == 403


async def test_ports_other_than_80_and_443_must_be_listed(names, upstream):
    names.table["api.example.org"] = ["127.0.0.1"]
    async with open_proxy("api.example.org", f"127.0.0.1:{upstream.port}") as port:
        assert await get(port, f"http://api.example.org:{upstream.port}/") == 403
        reply = await send(port, f"CONNECT api.example.org:{upstream.port} HTTP/1.1\r\n\r\n")
        assert reply.split()[1] == b"403"
    assert upstream.heads == names.lookups == []


@pytest.mark.parametrize(
    "headers",
    [("Host: other.example",), ("host: a", "HOST: b"), ("Proxy-Authorization: x", "Connection: keep-alive"), ()],
)
async def test_the_server_receives_the_host_that_was_checked(names, upstream, headers):
    async with open_proxy(f"localhost:{upstream.port}") as port:
        assert await get(port, f"http://user:password@localhost:{upstream.port}/", "X-Own: 1", *headers) == 200
    expected = [b"Host: localhost:%d" % upstream.port, b"Connection: close", b"X-Own: 1"]
    assert upstream.heads[0].strip().split(b"\r\n")[1:] == expected


@pytest.mark.parametrize(
    "head",
    [
        "GET http://HOST/ HTTP/1.1\r\nX: 1\nHost: other.example\r\n\r\n",
        "GET http://HOST/ HTTP/1.1\r\nX: 1\rHost: other.example\r\n\r\n",
        "GET http://HOST/ HTTP/1.1\r\nHost : other.example\r\n\r\n",
        "GET http://HOST/ HTTP/1.1\r\nX: 1\r\n folded\r\n\r\n",
        "GET http://HOST/\tx HTTP/1.1\nHost: other.example\r\n\r\n",
        "GET http://HOST/\x0bx HTTP/1.1\r\n\r\n",
        "GET http://HOST/\t HTTP/1.1\r\n\r\n",
        "G\x0cET http://HOST/ HTTP/1.1\r\n\r\n",
        "GET http://other.example[::1]:80/ HTTP/1.1\r\n\r\n",
        "CONNECT HOST/x HTTP/1.1\r\n\r\n",
        "CONNECT other.example@HOST HTTP/1.1\r\n\r\n",
        "CONNECT HOST?x HTTP/1.1\r\n\r\n",
        "GET http://HOST/ HTTP/2.0\r\n\r\n",
        "GET ftp://HOST/ HTTP/1.1\r\n\r\n",
        "GET /path HTTP/1.1\r\nHost: HOST\r\n\r\n",
        "nonsense\r\n\r\n",
    ],
)
async def test_a_head_that_a_server_could_read_in_another_way_is_refused(names, upstream, head):
    async with open_proxy(f"localhost:{upstream.port}") as port:
        reply = await send(port, head.replace("HOST", f"localhost:{upstream.port}"))
    assert reply.split()[1] == b"400"
    assert upstream.heads == []


async def test_a_tunnel_carries_both_directions(names, upstream):
    async with open_proxy(f"localhost:{upstream.port}") as port:
        reply = await send(port, f"CONNECT localhost:{upstream.port} HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")


@pytest.mark.parametrize("host", ["a..attacker.example", f"{'a' * 64}.attacker.example", ".attacker.example"])
async def test_a_name_that_cannot_be_looked_up_is_refused_without_a_line_in_the_log(caplog, host):
    async with open_proxy("*.attacker.example") as port:
        assert await get(port, f"http://{host}/") == 502
        assert (await send(port, f"CONNECT {host}:443 HTTP/1.1\r\n\r\n")).split()[1] == b"502"
    gc.collect()  # a task whose exception nobody has retrieved is logged when it is collected
    assert caplog.records == []


_OWN_ADDRESS_PROGRAM = """
import asyncio, socket, subprocess, sys
from standfast.workers._host.proxy import HttpProxy

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["ip", "address", "add", "93.184.216.34/32", "dev", "lo"], check=True)

async def get(entry):
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with HttpProxy.open(listener.detach(), (entry,)):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://93.184.216.34/ HTTP/1.1\\r\\n\\r\\n")
        status = (await reader.read()).split()[1].decode()
        writer.close()
        return status

async def answer(reader, writer):
    await reader.readuntil(b"\\r\\n\\r\\n")
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n")
    writer.close()

async def main():
    async with await asyncio.start_server(answer, "0.0.0.0", 80):
        print(await get("*"), await get("93.184.216.34"))

asyncio.run(main())
"""


@pytest.mark.skipif(shutil.which("unshare") is None or shutil.which("ip") is None, reason="needs unshare and ip")
def test_a_public_address_of_the_machine_itself_must_be_listed():
    command = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", _OWN_ADDRESS_PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip("this machine has no user namespaces")
    assert done.stdout.split() == ["403", "200"], done.stderr


def count_descriptors() -> int:
    import os

    return len(os.listdir("/proc/self/fd"))


async def test_idle_connections_take_a_limited_number_of_descriptors_and_are_closed(
    names, upstream, monkeypatch, caplog
):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("standfast.workers._host.proxy._HEAD_TIMEOUT", 1.0)
    async with open_proxy(f"localhost:{upstream.port}") as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(60)]
        try:
            before = count_descriptors()
            assert await get(port, f"http://localhost:{upstream.port}/") == 200
            assert count_descriptors() <= before + 40
        finally:
            for client in idle:
                client.close()
    assert len(caplog.records) < 10


async def test_a_tunnel_on_which_nothing_is_transferred_is_closed(names, monkeypatch):
    monkeypatch.setattr("standfast.workers._host.proxy._IDLE_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = silent.getsockname()[1]
        async with open_proxy(f"localhost:{target}") as port:
            reply = await send(port, f"CONNECT localhost:{target} HTTP/1.1\r\n\r\n")
    assert reply == b"HTTP/1.1 200 Connection established\r\n\r\n"


@pytest.mark.parametrize(
    "name", ["a.example:8080", "localhost:1", "127.0.0.1:80", "[::1]:8080", "*.a.example:443", "::1"]
)
def test_a_port_may_be_listed(name):
    assert SandboxPolicy(network=(name,)).network == (name,)


@pytest.mark.parametrize("name", ["a.example:", "a.example:0", "a.example:65536", "a.example:http", ":80", "[a]:80"])
def test_a_wrong_port_is_refused_before_anything_is_started(name):
    with pytest.raises(InvalidInput, match="host name"):
        SandboxPolicy(network=(name,))


async def test_answers_that_the_worker_does_not_read_keep_their_place(names):
    """Otherwise every connection would cost the host a descriptor, and there would be no limit for them."""
    served = 0

    async def answer(reader, writer):
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        served += 1
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + b"x" * 60_000)
        await writer.drain()
        writer.close()

    clients = []
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    # The accepted sockets inherit it: the answer does not fit, and the proxy has to keep the rest.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    port = listener.getsockname()[1]
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        upstream_port = server.sockets[0].getsockname()[1]
        async with HttpProxy.open(listener.detach(), (f"127.0.0.1:{upstream_port}",)):
            for _ in range(40):
                client = socket.socket()
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                client.connect(("127.0.0.1", port))
                client.send(f"GET http://127.0.0.1:{upstream_port}/ HTTP/1.1\r\n\r\n".encode())
                clients.append(client)
            await wait_until(lambda: served == 32)
            clients[0].settimeout(60)
            await asyncio.to_thread(lambda: [None for _ in iter(lambda: clients[0].recv(65536), b"")])
            await wait_until(lambda: served == 33)
            assert served == 33
            for client in clients:
                client.close()
            await wait_until(lambda: served == 40)


async def test_names_that_are_slow_to_look_up_do_not_occupy_the_threads_of_the_program(monkeypatch):
    answer, real = threading.Event(), socket.getaddrinfo
    started = []

    def getaddrinfo(host, *arguments, **options):
        if host.endswith("attacker.example"):
            started.append(host)
            answer.wait(120)
            raise socket.gaierror
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        async with open_proxy("*.attacker.example") as port:
            requests = [asyncio.create_task(get(port, f"http://{n}.attacker.example/")) for n in range(40)]
            await wait_until(lambda: started)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 60) == "free"
            answer.set()
            assert set(await asyncio.gather(*requests)) == {502}
    finally:
        answer.set()

"""Run a command in a fork of the command process: ``python -I -S command_client.py SOCKET WORDS``.

It imports nothing that takes time to import, because it is started for each command of the documentation.
"""

import _socket
import posix
import sys

path, *words = sys.argv[1:]
strings = [
    posix.getcwdb(),
    b"",
    b"%d" % len(words),
    *(word.encode("utf-8", "surrogateescape") for word in words),
    *(name + b"=" + value for name, value in posix.environ.items()),
]
server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
server.connect(path)
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
server.sendmsg([b"".join(each + b"\0" for each in strings)], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
status = 1
while answer := server.recv(100):
    if answer.startswith(b"exit "):
        status = int(answer[5:])
posix._exit(status if status >= 0 else 128 - status)

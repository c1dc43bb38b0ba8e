"""A command that a process which has loaded rayio makes in a fork of itself (tests/forks.py)."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
    server.connect(sys.argv[1])
    message = json.dumps([os.getcwd(), dict(os.environ), *sys.argv[2:]])  # noqa: PTH109
    socket.send_fds(server, [message.encode()], [0, 1, 2])
    code = int(server.recv(16) or -9)
if code < 0:  # a signal
    os.kill(os.getpid(), -code)
sys.exit(code)

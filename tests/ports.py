"""Ports for servers that are programs of their own, and so cannot be asked which one they got."""

from __future__ import annotations

import secrets
import socket

#: Below those that systems give to whoever asks for any, connections among them: from 32768 on, or from 49152.
FIRST, LAST = 20000, 32000


def unused() -> int:
    """A port on loopback that nobody has, and that nobody is given before its server starts."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST)
        with socket.socket() as free:
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

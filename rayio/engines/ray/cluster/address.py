"""Addresses of Ray's processes as text: ``host:port``, where an IPv6 host may be in brackets."""

from __future__ import annotations


def host_port(address: str) -> tuple[str, str]:
    """Return the host without brackets, and the port; both empty without a colon.

    >>> host_port("10.0.0.1:6379"), host_port("[fd00::2]:6379"), host_port("auto")
    (('10.0.0.1', '6379'), ('fd00::2', '6379'), ('', ''))
    """
    host, colon, port = address.rpartition(":")
    return (host.strip("[]"), port) if colon else ("", "")


def joined(host: str, port: int) -> str:
    """Return the address of a host and a port.

    >>> joined("10.0.0.1", 6379), joined("fd00::2", 6379)
    ('10.0.0.1:6379', '[fd00::2]:6379')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""TLS of a Ray cluster and of this client: one of them alone makes Ray wait for minutes, deaf to signals."""

from __future__ import annotations

import os
import socket
import ssl

from rayio.engines.ray.cluster.address import host_port
from rayio.errors import ClusterError

#: Ray's variable that turns TLS on, and those of its files.
USE = "RAY_USE_TLS"
FILES = "RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY and RAY_TLS_CA_CERT"
#: Seconds for a handshake.
HANDSHAKE_SECONDS = 3.0
#: Reasons of OpenSSL for an answer that is not TLS.
_PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNEXPECTED_EOF_WHILE_READING")


def check(address: str, gcs: str) -> None:
    """Refuse a cluster with TLS for a client without it, and the reverse; ``gcs`` is its control process (host:port).

    Raises:
        ClusterError: one of them uses TLS, and the other does not.
    """
    host, port = host_port(gcs)
    if not port.isdigit() or (has_tls := _has_tls(host, int(port))) is None:
        return
    is_used = os.environ.get(USE, "").lower() in ("1", "true")
    if has_tls and not is_used:
        raise ClusterError(f"the Ray cluster at {address} uses TLS, and this client does not: set {USE}=1, and {FILES}")
    if is_used and not has_tls:
        raise ClusterError(f"the Ray cluster at {address} uses no TLS, and {USE} is set here: unset it")


def _has_tls(host: str, port: int) -> bool | None:
    """Return whether a server speaks TLS; None if it does not answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    context.set_alpn_protocols(["h2"])
    try:
        with socket.create_connection((host, port), timeout=HANDSHAKE_SECONDS) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return error.reason not in _PLAIN
    except ConnectionError:
        return False
    except OSError:
        return None

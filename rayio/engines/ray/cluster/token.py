"""Ray's token authentication: a client without the cluster's token is told so. A token itself is never shown."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: What Ray reads: whether tokens are used, and where one is.
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
DEFAULT_PATH = "~/.ray/auth_token"

#: What Ray's own log says of a client that a cluster does not let in.
_REFUSED = ("InvalidAuthToken", "Unauthenticated")
#: How its client for jobs says what the dashboard answered, which is 401 or 403.
_REFUSED_BY_HTTP = ("Authentication required", "Authentication failed")


def use() -> None:
    """Use the token that this user has where nothing says whether to: Ray does so for clusters that it starts."""
    if MODE in os.environ:
        return
    with contextlib.suppress(Exception):  # another Ray
        from ray._private.authentication import authentication_token_setup as setup

        if setup.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
            setup._enable_token_auth()


def refusal(address: str, said: str, error: BaseException) -> str | None:
    """Say what to do where a cluster asks for a token, or this client should have one; else None.

    ``said`` is what Ray wrote on standard error meanwhile.
    """
    do = (
        f"set {MODE}=token, and {TOKEN_PATH} to the file that has the cluster's token, or {TOKEN} to the token, or "
        f"put that file at {DEFAULT_PATH}"
    )
    is_authentication = type(error).__name__ == "AuthenticationError"
    by_http = is_authentication and any(sign in str(error) for sign in _REFUSED_BY_HTTP)
    if by_http or any(sign in said or sign in str(error) for sign in _REFUSED):
        if (where := source()) is None:
            return f"the Ray cluster at {address} asks for a token, and this client sends none: {do}"
        return f"the Ray cluster at {address} does not accept the token of this client (from {where}): {do}"
    if is_authentication:
        where = f": {TOKEN_PATH} names no file that can be read" if TOKEN_PATH in os.environ else ""
        return f"{MODE}=token is set, and this client has no token{where}; {do}"
    return None


def source() -> str | None:
    """Where the token comes from that this process sends, None when it sends none."""
    if os.environ.get(MODE, "").lower() != "token":
        return None
    if os.environ.get(TOKEN):
        return TOKEN
    return TOKEN_PATH if os.environ.get(TOKEN_PATH) else DEFAULT_PATH


@contextlib.contextmanager
def overheard(log: Path) -> Iterator[list[str]]:
    """Keep what Ray's own code writes off the terminal; the list has it afterwards, as has the log."""
    said: list[str] = []
    try:
        kept = os.dup(2)
    except OSError:  # there is no standard error
        yield said
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield said
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            if text := file.read().decode(errors="replace"):
                said.append(text)
                with contextlib.suppress(OSError), log.open("a") as out:
                    out.write(text)

"""Ray's token authentication: messages for clients without the cluster's token. A token is never shown."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

#: Ray's variables: the mode, the token, and the token's file.
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
DEFAULT_PATH = "~/.ray/auth_token"

#: Ray's log messages about a refused client.
_REFUSED = ("InvalidAuthToken", "Unauthenticated")
#: Messages of its job client about 401 and 403 from the dashboard.
_REFUSED_BY_HTTP = ("Authentication required", "Authentication failed")


def use() -> None:
    """Use this user's token unless variables decide; Ray does so for clusters that it starts."""
    if MODE in os.environ:
        return
    with contextlib.suppress(Exception):  # other versions of Ray
        from ray._private.authentication import authentication_token_setup as setup

        if setup.AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True):
            setup._enable_token_auth()


def refusal(address: str, output: str, error: BaseException) -> str | None:
    """Return the remedy if a cluster requires a token, or this client lacks one; else None.

    ``output`` is Ray's text on standard error.
    """
    do = (
        f"set {MODE}=token, and {TOKEN_PATH} to the file that has the cluster's token, or {TOKEN} to the token, or "
        f"put that file at {DEFAULT_PATH}"
    )
    is_authentication = type(error).__name__ == "AuthenticationError"
    by_http = is_authentication and any(sign in str(error) for sign in _REFUSED_BY_HTTP)
    if by_http or any(sign in output or sign in str(error) for sign in _REFUSED):
        if (where := source()) is None:
            return f"the Ray cluster at {address} asks for a token, and this client sends none: {do}"
        return f"the Ray cluster at {address} does not accept the token of this client (from {where}): {do}"
    if is_authentication:
        where = f": {TOKEN_PATH} names no file that can be read" if TOKEN_PATH in os.environ else ""
        return f"{MODE}=token is set, and this client has no token{where}; {do}"
    return None


def source() -> str | None:
    """Return the source of the token that this process sends; None without a token."""
    if os.environ.get(MODE, "").lower() != "token":
        return None
    if os.environ.get(TOKEN):
        return TOKEN
    return TOKEN_PATH if os.environ.get(TOKEN_PATH) else DEFAULT_PATH


@contextlib.contextmanager
def overheard(log: Path) -> Iterator[list[str]]:
    """Redirect Ray's output from the terminal to the log; the list has its lines afterwards."""
    lines: list[str] = []
    try:
        kept = os.dup(2)
    except OSError:  # no standard error
        yield lines
        return
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            file.seek(0)
            if text := file.read().decode(errors="replace"):
                lines.append(text)
                with contextlib.suppress(OSError), log.open("a") as out:
                    out.write(text)

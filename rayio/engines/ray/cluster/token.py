"""Ray's token authentication: as the addressed cluster has it, and messages for clients without its token.

A token is never shown.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from rayio.errors import ClusterError

T = TypeVar("T")

#: Ray's variables: the mode, the token, and the token's file.
MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
DEFAULT_PATH = "~/.ray/auth_token"
WITH, WITHOUT = "token", "disabled"
#: Seconds for a cluster's control process to answer.
ASK_SECONDS = 5.0

#: Ray's log messages about a refused client.
_REFUSED = ("InvalidAuthToken", "Unauthenticated")
#: Messages of its job client about 401 and 403 from the dashboard.
_REFUSED_BY_HTTP = ("Authentication required", "Authentication failed")

#: The mode that this process set for the cluster it talks to; None if the user or Ray decides.
_chosen: str | None = None


def forget() -> None:
    """Leave the mode to the user's variable again, before another cluster is addressed or one is started."""
    global _chosen
    if _chosen is not None and os.environ.get(MODE) == _chosen:
        del os.environ[MODE]
    _chosen = None


def use_that_of(address: str, gcs: str) -> None:
    """Authenticate as the cluster at ``address`` does, whose control process is at ``gcs`` (host:port).

    Without ``RAY_AUTH_MODE`` the cluster decides: a token that is left over from another cluster changes nothing.

    Raises:
        ClusterError: the mode is not the cluster's, or it does not accept this client's token.
    """
    forget()
    mode = os.environ.get(MODE, "").lower()
    if mode == WITH and not has_token():  # Ray would ask for 40 s before it missed the token
        raise ClusterError(_no_token())
    wanted = _is_refused(gcs, WITHOUT)
    if wanted is None:  # no answer, or another version of Ray: its own connection tells more
        return
    if wanted is False:
        if mode == WITH:
            raise ClusterError(
                f"the Ray cluster at {address} asks for no token, and {MODE}={WITH} is set here: unset it, or set "
                f"{MODE}={WITHOUT}"
            )
        _choose(WITHOUT)
        return
    if mode == WITHOUT or not has_token():
        raise ClusterError(_none_sent(address))
    _choose(WITH)
    if _is_refused(gcs, WITH):
        raise ClusterError(_not_accepted(address, source()))


def ask_with_or_without(call: Callable[[], T]) -> T:
    """Make a first call to a dashboard: without a token, and with this user's if it asks for one.

    ``RAY_AUTH_MODE`` decides if it is set.
    """
    forget()
    if os.environ.get(MODE):
        return call()
    _choose(WITHOUT)
    try:
        return call()
    except Exception as error:
        if not _is_by_http(error) or not has_token():
            raise
    _choose(WITH)
    return call()


def has_token() -> bool:
    """Return True if this user has a token, whatever the mode is."""
    with contextlib.suppress(Exception):  # other versions of Ray
        return bool(_core().AuthenticationTokenLoader.instance().has_token(ignore_auth_mode=True))
    return False


def _core() -> Any:
    """Return Ray's core, which has no types."""
    return import_module("ray._raylet")


def _choose(mode: str) -> None:
    """Set the mode of this process."""
    global _chosen
    if os.environ.get(MODE, "").lower() != mode:
        os.environ[MODE] = _chosen = mode
    _reload()


def _reload() -> None:
    """Make Ray read its variables again."""
    with contextlib.suppress(Exception):  # other versions of Ray
        _core().Config.initialize("")
        _core().AuthenticationTokenLoader.instance().reset_cache()


def _is_refused(gcs: str, mode: str) -> bool | None:
    """Return True if a cluster's control process refuses this client in a mode; None if it does not answer."""
    before = os.environ.get(MODE)
    os.environ[MODE] = mode
    _reload()
    try:
        _core().GcsClient(address=gcs).check_alive([], timeout=ASK_SECONDS)
        return False
    except Exception as error:
        return True if type(error).__name__ == "AuthenticationError" else None
    finally:
        if before is None:
            del os.environ[MODE]
        else:
            os.environ[MODE] = before
        _reload()


def _remedy() -> str:
    return (
        f"set {MODE}={WITH}, and {TOKEN_PATH} to the file that has the cluster's token, or {TOKEN} to the token, or "
        f"put that file at {DEFAULT_PATH}"
    )


def _none_sent(address: str) -> str:
    return f"the Ray cluster at {address} asks for a token, and this client sends none: {_remedy()}"


def _not_accepted(address: str, where: str | None) -> str:
    return f"the Ray cluster at {address} does not accept the token of this client (from {where}): {_remedy()}"


def _no_token() -> str:
    where = f": {TOKEN_PATH} names no file that can be read" if TOKEN_PATH in os.environ else ""
    return f"{MODE}={WITH} is set, and this client has no token{where}; {_remedy()}"


def _is_by_http(error: BaseException) -> bool:
    is_authentication = type(error).__name__ == "AuthenticationError"
    return is_authentication and any(sign in str(error) for sign in _REFUSED_BY_HTTP)


def refusal(address: str, output: str, error: BaseException) -> str | None:
    """Return the remedy if a cluster requires a token, or this client lacks one; else None.

    ``output`` is Ray's text on standard error.
    """
    if _is_by_http(error) or any(sign in output or sign in str(error) for sign in _REFUSED):
        return _none_sent(address) if (where := source()) is None else _not_accepted(address, where)
    if type(error).__name__ == "AuthenticationError":
        return _no_token()
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

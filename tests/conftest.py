"""One local Ray for the whole session, with a HOME of its own; started by the first test that asks for it."""

from __future__ import annotations

import logging
import os
import tempfile
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

#: How long an example takes says more about the machine than about the code.
settings.register_profile("rayio", deadline=None)
settings.load_profile("rayio")


def installed(folder: Path) -> str:
    """Make a folder in which Python finds the entry points of pyproject.toml, however old what is installed is."""
    points = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    metadata = folder / "site" / "rayio-0.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rayio\nVersion: 0.0\n")
    said = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in those.items()) for group, those in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join(said))
    return str(metadata.parent)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Start Ray once; only what was started here is stopped."""
    import ray

    with tempfile.TemporaryDirectory(prefix="rayio-home-") as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", home)
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("RAY_worker_niceness", "0")  # as rayio's own: by default all else on the machine comes first
        path = os.environ.get("PYTHONPATH")
        with warnings.catch_warnings(), pytest.MonkeyPatch.context() as workers:
            warnings.simplefilter("ignore")  # Ray's own
            workers.setenv("PYTHONPATH", os.pathsep.join(filter(None, [installed(Path(home)), path])))
            ray.init(
                address="local", num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False,
                logging_level=logging.ERROR, object_store_memory=400 << 20,
            )  # fmt: skip
        yield
        ray.shutdown()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and HOME that a command has for itself."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path

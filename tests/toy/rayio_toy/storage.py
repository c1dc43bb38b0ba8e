"""A storage: addresses that begin with ``toy://`` are folders below ``$RAYIO_TOY``. And one that is only a model."""

from __future__ import annotations

import os
from pathlib import Path

from rayio.storage.posix import PosixStore
from rayio.storage.presets import Preset
from rayio.storage.stores import DEFAULTS, Settings

TAPE = Preset(
    first_byte_median=0.05,
    first_byte_sigma=0.0,
    connection_bandwidth=300e6,
    bandwidth=300e6,
    requests_per_second=None,
    scope="cluster",
    provenance="assumed",
    source="a tape that is wound already",
)


class ToyStore(PosixStore):
    """Files in another place than their address says."""

    is_local = False

    def __init__(self, address: str | Path, settings: Settings = DEFAULTS) -> None:
        self._address = str(address)
        super().__init__(Path(os.environ["RAYIO_TOY"]) / self._address.removeprefix("toy://"), settings)

    @property
    def address(self) -> str:
        return self._address

    def full(self, name: str) -> str:
        return f"{self._address.rstrip('/')}/{name}"

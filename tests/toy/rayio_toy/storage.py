"""A storage: addresses that begin with ``toy://`` are folders below ``$RAYIO_TOY``. And one that is only a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from rayio.schema.fields import Section, Text
from rayio.storage.presets import Preset
from rayio.storage.stores.opening import Fill, Settings
from rayio.storage.stores.posix import PosixStore

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


class ToyStoreOptions(Section):
    """What ``storage`` may say of this scheme."""

    shelf: Text = Field("", description="Folder below $RAYIO_TOY that addresses start from.")
    region: Text = Field("", description="Folder below that one.")


class ToyStore(PosixStore):
    """Files in another place than their address says."""

    is_local = False
    options = ToyStoreOptions

    def __init__(self, address: str | Path, options: ToyStoreOptions, settings: Settings) -> None:
        self._address = str(address)
        shelf = Path(os.environ.get("RAYIO_TOY", ""), options.shelf, options.region)
        super().__init__(shelf / self._address.removeprefix("toy://"), None, settings)

    @property
    def address(self) -> str:
        return self._address

    def write(self, name: str, fill: Fill, *, doing: str = "writing", **how: Any) -> None:
        self.prepare(doing)
        super().write(name, fill, doing=doing, **how)

    def create(self, name: str, content: bytes) -> bool:
        self.prepare()
        return super().create(name, content)

    def full(self, name: str) -> str:
        return f"{self._address.rstrip('/')}/{name}"

    @staticmethod
    @contextmanager
    def trial(folder: Path) -> Iterator[str]:
        """Give an address where the laws of stores can be tried on this one."""
        before = os.environ.get("RAYIO_TOY")
        os.environ["RAYIO_TOY"] = str(folder)
        try:
            yield "toy://tried"
        finally:
            os.environ.pop("RAYIO_TOY") if before is None else os.environ.update(RAYIO_TOY=before)

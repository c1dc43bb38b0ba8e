"""A format: samples one after the other, each behind a gap of zeros."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, BinaryIO

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.formats.reads import opened
from rayio.data.formats.sample import Place, check, fill
from rayio.data.layout import Batch, Layout
from rayio.scenario.kind import Kind
from rayio.scenario.model import Scenario
from rayio.schema.fields import Section, quantity
from rayio.storage.base import Opener, Requests
from rayio.units import BYTES


class ToyOptions(Section):
    """What ``dataset`` may say of this format."""

    gap: Annotated[int, quantity(BYTES, integer=True)] = Field(0, description="Bytes of nothing before each sample.")


def gap_of(options: Section) -> int:
    assert isinstance(options, ToyOptions)
    return options.gap


class ToyFormat(Kind):
    """A request for each sample and the gap before it."""

    extension = ".toy"
    options = ToyOptions

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        if (gap := gap_of(scenario.dataset.options)) > 1 << 20:
            yield f"dataset.gap={gap}: must be at most 1 MiB"

    def idle(self, scenario: Scenario) -> Iterator[str]:
        if scenario.dataset.samples_per_file == 1 and gap_of(scenario.dataset.options):
            yield "dataset.gap: a file of one sample has it before the first"

    def table(self, scenario: Scenario) -> Mapping[str, float]:
        return {"gap_bytes": gap_of(scenario.dataset.options) * scenario.dataset.samples_per_file}

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        sizes: NDArray[np.int64] = layout.samples_per_file * (gap_of(layout.options) + layout.sample_bytes_of(files))
        return sizes

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        whole = layout.whole_file(number)
        for sample, nbytes in zip(whole.samples.tolist(), whole.nbytes.tolist(), strict=True):
            row = np.zeros(nbytes, np.uint8)
            fill(row, layout.seed, sample)
            file.write(bytes(gap_of(layout.options)))
            file.write(row.data)

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        address = (batch.rank, batch.epoch, batch.step)
        return Requests(address, len(batch.samples), batch.nbytes + gap_of(layout.options))

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        gap, end = gap_of(layout.options), 0
        ids = np.empty(len(batch.samples), np.int64)
        for at, (file, index, nbytes) in enumerate(
            zip(batch.files.tolist(), batch.index.tolist(), batch.nbytes.tolist(), strict=True)
        ):
            place = Place(layout.path(file), int(batch.samples[at]), index)
            buffer = bytearray(gap + nbytes)
            with opened(opener, place) as stream:
                stream.seek(index * len(buffer))
                got = stream.readinto(buffer)  # type: ignore[attr-defined]
            if got < len(buffer):
                raise place.error(f"expected {len(buffer)} bytes, found {got}")
            ids[at] = check(memoryview(buffer)[gap:], layout.seed, place)
            out[end : end + nbytes] = np.frombuffer(buffer, np.uint8, offset=gap)
            end += nbytes
        return ids

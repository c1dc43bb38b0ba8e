"""Files that another program wrote, read as they are: those of DLIO, MLPerf Storage, or anybody.

A sample has no id and no checksum of ours, and lies in its file as that program put it there. So files count by name,
size and number of samples. What a format itself can tell (checksums, lengths, the end of a file) is verified.

A file of one sample is that sample, whole. Records of TFRecord of one size are read by index. Of other formats
a batch reads the whole file, as ``numpy.load`` and ``pandas.read_csv`` do, and a sample is an even part of its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayio.data.formats.external_checks import CHECKS, COUNTS, one_record
from rayio.data.formats.reads import read_into
from rayio.data.formats.records import Records
from rayio.data.formats.sample import Place
from rayio.data.layout import Batch, Layout
from rayio.errors import DataError, OtherNumberError
from rayio.scenario.change import Change, Run
from rayio.schema.fields import show
from rayio.storage.base import Opener

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

AGAIN = "the file is damaged, or no such file"
ALIKE = "write files with as many samples each, or move this one to another folder"
CHANGED = "the file changed after it was listed"


class External(Records):
    """Files of a format that another program wrote."""

    sizes_vary: ClassVar[bool] = True

    def __init__(self, name: str, *extensions: str) -> None:
        self.name = name
        self.extensions = extensions

    @property
    def extension(self) -> str:  # type: ignore[override]
        """The suffix of file names."""
        return self.extensions[0]

    def content(self, file: BinaryIO, size: int) -> memoryview:
        """Return the bytes of a file of this size.

        Raises:
            ValueError: it has fewer.
        """
        content = np.empty(size, np.uint8).data
        if (length := read_into(file, 0, content)) < size:
            raise ValueError(f"expected {size} bytes, found {length}")
        return content

    def count(self, content: memoryview) -> int | None:
        """Return the samples of a file, as it says itself; None if it does not.

        Raises:
            Exception: no file of this format; libraries raise a dozen classes.
        """
        number = COUNTS[self.name](content)
        return None if number is None else int(number)

    def verify(self, content: memoryview, samples: int) -> None:
        """Verify that a file holds so many samples, as far as its format can tell.

        Raises:
            Exception: it does not; libraries raise a dozen classes.
        """
        CHECKS[self.name](content, samples)

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse keys about the making of files, and readers that need files of rayio."""
        dataset, loader = scenario.dataset, scenario.loader
        made = dataset.options.model_dump(exclude_defaults=True)
        made |= {
            key: value
            for key in ("compressibility", "sizes", "files_per_folder")
            if (value := getattr(dataset, key)) != type(dataset).model_fields[key].default
        }
        for key, value in made.items():
            yield f"dataset.{key}={show(value)}: files of dataset.external=true are as they are; remove the key"
        if loader.scaling != "strong":
            yield (
                f"loader.scaling={loader.scaling}: the files of dataset.external=true do not grow with the ranks; use "
                "strong"
            )
        if (kind := getattr(loader.decode, "kind", "")) in ("numbers", "json"):
            yield (
                f"loader.decode.kind={kind}: decodes lines of rayio's files; with dataset.external=true give a time, "
                "checksum or decompress"
            )
        if getattr(loader.options, "reader", "rayio") != "rayio":
            yield (
                f"loader.reader={loader.options.reader}: verifies samples of rayio; with dataset.external=true use "  # type: ignore[attr-defined]
                "loader.reader=rayio"
            )

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield nothing: the files are as they are."""
        yield from ()

    def _is_read_whole(self, layout: Layout) -> bool:
        """Return True if no sample can be read alone."""
        if layout.samples_per_file == 1:
            return False
        if self.name != "tfrecord":
            return True
        return layout.listing is not None and bool((layout.listing.sizes % layout.samples_per_file).any())

    def of(self, layout: Layout) -> External:
        """Return the form of a dataset's files: with ``reads_whole`` where no sample can be read alone."""
        whole = _WHOLE.get(self.name) if self._is_read_whole(layout) else None
        return whole or self

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sizes that were listed; without files here, those of the scenario."""
        if layout.listing is None:
            return layout.samples_per_file * layout.sample_bytes_of(files)
        return layout.listing.sizes[files]

    def sizes_of_files(self, layout: Layout, batch: Batch) -> NDArray[np.int64]:
        """Return the size of each sample's file."""
        return self.file_bytes(layout, batch.files)

    def _starts(
        self, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        return index * self.file_bytes(layout, files) // layout.samples_per_file

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Refuse to write.

        Raises:
            DataError: always.
        """
        raise DataError(f"{layout.path(number)}: rayio writes no files of dataset.external=true")

    def check(self, sample: memoryview, layout: Layout, place: Place) -> int:
        """Verify a file that is a sample, or a record; return the sample that was meant to be read."""
        if layout.samples_per_file == 1:
            self._verify(sample, layout, place)
        elif not self.reads_whole:
            self._verify_record(sample, layout, place)
        return place.sample

    def _whole(self, stream: BinaryIO, nbytes: int, layout: Layout, place: Place) -> memoryview:
        content = super()._whole(stream, nbytes, layout, place)
        self._verify(content, layout, place)
        return content

    def _verify(self, content: memoryview, layout: Layout, place: Place) -> None:
        """Verify a whole file."""
        samples, first = layout.samples_per_file, layout.path(0)
        expected = f"expected {samples} sample{'s' * (samples > 1)}"
        try:
            self.verify(content, samples)
        except MemoryError:
            raise
        except OtherNumberError as error:
            source = f"dataset.samples_per_file={samples}" if place.path == first else f"as in {first}"
            raise place.error(f"{expected} ({source}), found {error}; {ALIKE}") from error
        except Exception as error:  # libraries raise a dozen classes for invalid bytes
            reason = " ".join(str(error).split()) or type(error).__name__
            raise place.error(f"{expected} in {self.name}, found otherwise ({reason}): {AGAIN}") from error

    def _verify_record(self, record: memoryview, layout: Layout, place: Place) -> None:
        """Verify a record of TFRecord, which is an even part of its file."""
        samples = layout.samples_per_file
        try:
            one_record(record, place.row * len(record))
        except ValueError as error:
            again, sizes = AGAIN, self.file_bytes(layout, np.array([0, place.sample // samples]))
            if sizes[0] != sizes[1]:
                again = f"the file is damaged, or has not {samples} records of one size as {layout.path(0)}; {ALIKE}"
            raise place.error(
                f"expected a record of {len(record)} bytes, found otherwise ({error}): {again}"
            ) from error

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read runs of samples, or whole files, and verify what the format can tell, and the sizes of files."""
        files: list[tuple[str, Any]] = []

        def opened(path: str) -> BinaryIO:
            file = opener(path)
            files.append((path, file))
            return file

        ids = super().read(opened, layout, batch, out)
        expected = self.file_bytes(layout, batch.files)
        for path, file in files:
            place = next(n for n, number in enumerate(batch.files.tolist()) if layout.path(number) == path)
            size = getattr(file, "size", None)
            if isinstance(size, int) and size != expected[place]:
                named = Place(path, int(batch.samples[place]), int(batch.index[place]))
                raise named.error(f"expected a file of {expected[place]} bytes, found {size}: {CHANGED}")
        return ids


class Whole(External):
    """The same, where a batch reads whole files."""

    reads_whole = True


NPZ, NPY = External("npz", ".npz"), External("npy", ".npy")
HDF5 = External("hdf5", ".hdf5", ".h5")
TFRECORD = External("tfrecord", ".tfrecord", ".tfrecords")
JPEG, PNG = External("jpeg", ".jpeg", ".jpg"), External("png", ".png")
CSV, PARQUET = External("csv", ".csv"), External("parquet", ".parquet")
_WHOLE = {form.name: Whole(form.name, *form.extensions) for form in (NPZ, NPY, HDF5, TFRECORD, CSV, PARQUET)}

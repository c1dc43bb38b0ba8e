"""Formats, one module each: a format plans the requests of its library, and writes and reads with that library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from rayio import kinds
from rayio.data.formats.reads import NOT_KEPT
from rayio.data.layout import Batch, Layout
from rayio.registry import Registry
from rayio.scenario import derive
from rayio.scenario.external import listing_of
from rayio.storage.base import Opener, Requests, RequestTable

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario


class Format(Protocol):
    """A file format of samples. Implementations are stateless.

    A format with options names their class in ``options``, see :class:`rayio.scenario.kind.Kind`; they are passed in
    ``layout.options``. A format without files has ``has_files = False``.

    Files that belong to each file have their suffixes in ``beside``. Then ``beside_bytes(layout, files, suffix)``
    returns their sizes, and ``write_beside(file, layout, number, suffix)`` writes one.

    >>> FORMATS["tfrecord"].file_bytes(layout_of(load("unet3d-small")), np.arange(3)).shape
    (3,)
    """

    @property
    def extension(self) -> str:
        """The suffix of file names, with the dot."""

    def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the exact size of each of ``files``, in bytes, computed without writing it."""

    def write(self, file: BinaryIO, layout: Layout, number: int) -> None:
        """Write file ``number`` of the dataset: the same bytes for the same layout, on every machine."""

    def requests(self, layout: Layout, batch: Batch) -> Requests:
        """Return the opens and reads that :meth:`read` issues for this batch."""

    def read(self, opener: Opener, layout: Layout, batch: Batch, out: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Read and verify a batch into ``out``, sample after sample, and return the ids read.

        ``out`` is contiguous and ``batch.total_bytes`` long.

        Raises:
            DataError: a file is missing, truncated, corrupted or another one; names file, sample and expectation.
            StorageError: the storage refuses.
        """


def request_table(
    form: Format, layout: Layout, files: NDArray[np.int64], index: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> RequestTable | None:
    """Return :meth:`Format.requests` of each of many steps, without places; None if the format has no fast way.

    ``files``, ``index`` and ``nbytes`` are those of :class:`Batch`, with one row a step. A format may offer a method
    ``request_table`` of the same arrays; it returns None where it is no faster than step by step.
    """
    at_once = getattr(form, "request_table", None)
    table: RequestTable | None = at_once and at_once(layout, files, index, nbytes)
    return table


def spans(form: Format, layout: Layout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the first byte of each sample in its file and one past its last, for streams; None without that order.

    Formats whose samples follow each other without gaps, and that need nothing else of a file to read one, have a
    method ``spans`` with the same arguments.
    """
    of_batch = getattr(form, "spans", None)
    edges: tuple[NDArray[np.int64], NDArray[np.int64]] | None = of_batch and of_batch(layout, batch)
    return edges


def units(form: Format, layout: Layout, batch: Batch, requests: Requests) -> NDArray[np.int64]:
    """Return for each of a batch's ``requests`` what a library keeps of it while it has the file open.

    ``HEAD``: the file's description, which it reads once. A number of 0 or more: the chunk or row group of which the
    request is a part; of each file the last one read stays in memory. ``NOT_KEPT``: nothing. Formats that keep
    something have a method ``units`` of layout and batch.
    """
    of_batch = getattr(form, "units", None)
    numbers: NDArray[np.int64] = (
        np.full(len(requests.nbytes), NOT_KEPT) if of_batch is None else of_batch(layout, batch)
    )
    return numbers


def not_in_one_file(form: Format) -> str:
    """Return why files of a format are not read one by one; empty if they are."""
    name = next((name for name in FORMATS if FORMATS[name] is form), form.extension[1:])
    if not getattr(form, "has_files", True):
        return f"{name} files do not exist"
    return f"{name} files need another file, their index" if getattr(form, "beside", ()) else ""


def check_labels(form: Format, opener: Opener, layout: Layout, number: int) -> None:
    """Read and verify the labels of file ``number``, if the format stores them apart from the samples.

    Such a format has a method ``check_labels`` with the same arguments.

    Raises:
        DataError: names file, sample, byte and the label.
    """
    check = getattr(form, "check_labels", None)
    if check is not None:
        check(opener, layout, number)


FORMATS: Registry[Format] = kinds.FORMATS
EXTERNALS: Registry[Any] = kinds.EXTERNALS


def form_of(name: str, layout: Layout) -> Format:
    """Return the format of a dataset's files, written by rayio or by another program."""
    if layout.is_external:
        form: Format = EXTERNALS[name].of(layout)
        return form
    return FORMATS[name]


def layout_of(scenario: Scenario) -> Layout:
    """Return the layout of a scenario's dataset; the format sets the extension."""
    dataset = scenario.dataset
    return Layout(
        num_files=derive.num_files(scenario),
        samples_per_file=dataset.samples_per_file,
        sample_bytes=dataset.sample_bytes,
        seed=scenario.seed,
        extension=FORMATS[dataset.format].extension,
        options=dataset.options,
        compressibility=dataset.compressibility,
        files_per_folder=dataset.files_per_folder,
        sizes=dataset.sizes,
        is_external=dataset.external,
        listing=listing_of(scenario) if dataset.external else None,
    )

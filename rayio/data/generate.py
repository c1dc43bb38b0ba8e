"""Write, resume or verify a dataset; its bytes follow from the layout alone.

It uses threads: drawing, hashing and writing run in C, mostly in parallel, and threads need no main guard.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from rayio import signals, storage
from rayio.data import manifest
from rayio.data.formats import FORMATS, Format, check_labels
from rayio.data.layout import Layout
from rayio.errors import DataError, StorageError
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.opening import DEFAULTS, Settings, Store
from rayio.units import format_bytes

#: Called in the caller's thread with finished files, finished bytes, all files and all bytes.
Progress = Callable[[int, int, int, int], None]

SHARD_FILES = 64
SHARD_BYTES = 64 << 20
#: The default number of threads is at most this; more wait for Python's lock.
MAX_THREADS = 8
#: Seconds for requests in flight to end after an interrupt.
LEAVE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome for a dataset: files reused and files written, with their bytes on disk."""

    reused_files: int
    reused_bytes: int
    written_files: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Survey:
    """The state of a dataset's files; a file has its name only once it is complete."""

    #: Numbers and sizes of files that have to be written.
    missing: list[tuple[int, int]]
    #: Numbers, actual sizes and expected sizes of files of the wrong size.
    wrong: list[tuple[int, int, int]]
    found_bytes: int


def prepare(
    layout: Layout,
    format: str,
    root: str | Path,
    *,
    settings: Settings = DEFAULTS,
    threads: int | None = None,
    progress: Progress | None = None,
    section: str = "dataset",
) -> Report:
    """Verify and reuse a dataset, resume an interrupted one, or write it.

    ``root`` is its address, ``settings`` are the store's. Every file appears whole or not at all; equal layouts give
    equal bytes for any number of ``threads`` (None: one per processor, up to 8). After an interrupt the next call
    continues. Several processes may prepare one folder at the same time. ``section`` is its name in messages.

    Raises:
        DataError: ``root`` holds another dataset, something else, or a finished file of the wrong size.
        StorageError: no space, no permission.
    """
    form, store = FORMATS[format], storage.open(root, settings)
    wanted = manifest.Manifest.of(layout, format)
    present = manifest.find(store)
    if present is not None:
        present.agree(wanted, store.address, section)
    survey = take_stock(layout, form, store)
    missing = survey.missing
    if present is not None and present.complete and survey.wrong:
        raise _wrong_size(layout, store, survey.wrong)
    # In an unfinished dataset a wrong size is a file truncated by a crash of the machine.
    missing = sorted(missing + [(number, expected) for number, _, expected in survey.wrong])
    written_bytes = sum(size for _, size in missing)
    num_files = layout.num_files if getattr(form, "has_files", True) else 0
    report = Report(num_files - len(missing), survey.found_bytes, len(missing), written_bytes)
    if present is not None and present.complete and not missing:
        return report
    store.prepare("creating the dataset's folder")
    _check_space(store, written_bytes)
    wanted.write(store)
    # Pages leave the page cache only once they are on the device; flush them now, not during the measured run.
    fsync = settings.page_cache != "use"
    _in_threads(
        lambda number: write_file(layout, form, store, number, fsync=fsync), missing, threads, progress,
        is_local=store.is_local,
    )  # fmt: skip
    replace(wanted, complete=True).write(store)
    return report


def verify(
    layout: Layout,
    format: str,
    root: str | Path,
    *,
    settings: Settings = DEFAULTS,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Read every sample of a finished dataset and check its id, checksum and label.

    Raises:
        DataError: names the first file that is missing, truncated, corrupted or of another dataset.
        StorageError: no permission.
    """
    form, store = FORMATS[format], storage.open(root, settings)
    present = manifest.find(store)
    if present is None:
        raise DataError(f"{store.address}: there is no dataset; generate it first")
    present.agree(manifest.Manifest.of(layout, format), store.address)
    survey = take_stock(layout, form, store)
    if survey.wrong:
        raise _wrong_size(layout, store, survey.wrong)
    if survey.missing:
        lost = store.full(layout.path(survey.missing[0][0]))
        raise DataError(f"{lost}: the file is missing; generate the dataset again")
    sizes = [size for _, _, block in _blocks(layout, form) for size in block]
    layout = layout.stored
    _in_threads(
        lambda number: _verify_file(layout, form, store, number), list(enumerate(sizes)), threads, progress,
        is_local=store.is_local,
    )  # fmt: skip
    return Report(len(sizes), survey.found_bytes, 0, 0)


def write_file(layout: Layout, form: Format, store: Store, number: int, *, fsync: bool = False) -> None:
    """Write one file of a dataset, atomically; ``fsync`` forces it to the device.

    Raises:
        StorageError: no space, no permission.
    """
    name, doing = layout.path(number), "writing the dataset"
    for suffix in getattr(form, "beside", ()):
        write: Callable[..., None] = form.write_beside  # type: ignore[attr-defined]
        other = name.removesuffix(layout.extension) + suffix
        store.write(other, partial(write, layout=layout, number=number, suffix=suffix), fsync=fsync, doing=doing)
    store.write(name, lambda file: form.write(file, layout, number), fsync=fsync, doing=doing)


def take_stock(layout: Layout, form: Format, store: Store) -> Survey:
    """Compare file names and sizes with the expected ones; remove temporary files of interrupted writers.

    Raises:
        StorageError: no permission.
    """
    survey_missing: list[tuple[int, int]] = []
    survey_wrong: list[tuple[int, int, int]] = []
    found_bytes = 0
    for first, folder, expected in _blocks(layout, form):
        store.tidy(folder)
        sizes = store.sizes(folder)
        lacking = _lacking(layout, form, first, len(expected), sizes)
        for number, size in enumerate(expected, first):
            actual = sizes.get(PurePosixPath(layout.path(number)).name)
            if actual is None or number in lacking:
                survey_missing.append((number, size))
            elif actual != size:
                survey_wrong.append((number, actual, size))
            else:
                found_bytes += size
    return Survey(survey_missing, survey_wrong, found_bytes)


def _blocks(layout: Layout, form: Format) -> Iterator[tuple[int, str, list[int]]]:
    if not getattr(form, "has_files", True):
        return
    for first in range(0, layout.num_files, each := layout.files_per_folder):
        numbers = np.arange(first, min(first + each, layout.num_files), dtype=np.int64)
        yield first, str(PurePosixPath(layout.path(first)).parent), form.file_bytes(layout, numbers).tolist()


def _lacking(layout: Layout, form: Format, first: int, number: int, sizes: Mapping[str, int]) -> set[int]:
    """Return the files of which another file that belongs to it is missing, or has another size than expected."""
    numbers = np.arange(first, first + number, dtype=np.int64)
    lacking: set[int] = set()
    for suffix in getattr(form, "beside", ()):
        expected = form.beside_bytes(layout, numbers, suffix).tolist()  # type: ignore[attr-defined]
        for file, size in zip(numbers.tolist(), expected, strict=True):
            if sizes.get(PurePosixPath(layout.path(file)).name.removesuffix(layout.extension) + suffix) != size:
                lacking.add(file)
    return lacking


def _check_space(store: Store, needed: int) -> None:
    free = store.free_bytes()
    if free is not None and needed > free:
        raise StorageError(
            f"{store.address}: the dataset needs {format_bytes(needed)} more, only {format_bytes(free)} are free; "
            f"free space, choose another dataset.path, or lower dataset.num_files"
        )


def _wrong_size(layout: Layout, store: Store, wrong: Sequence[tuple[int, int, int]]) -> DataError:
    number, actual, expected = wrong[0]
    first = number * layout.samples_per_file
    last = first + layout.samples_per_file - 1
    which = f"sample {first}" if first == last else f"samples {first} to {last}"
    more = f" (and {len(wrong) - 1} more files)" if len(wrong) > 1 else ""
    return DataError(
        f"{store.full(layout.path(number))}: {which}: expected a file of {expected} bytes, found {actual}{more}; "
        f"delete it and generate the dataset again"
    )


def _verify_file(layout: Layout, form: Format, store: Store, number: int) -> None:
    many = max(1, SHARD_BYTES // int(layout.whole_file(number).nbytes.max()))
    for first in range(0, layout.samples_per_file, many):
        batch = layout.whole_file(number, first, min(first + many, layout.samples_per_file))
        form.read(counted_opener(store, Traffic()), layout, batch, np.empty(batch.total_bytes, np.uint8))
    check_labels(form, counted_opener(store, Traffic()), layout, number)


def _in_threads(
    work: Callable[[int], None], files: Sequence[tuple[int, int]], threads: int | None, progress: Progress | None,
    *, is_local: bool,
) -> None:  # fmt: skip
    """Call ``work`` for each (file, bytes) in threads; stop all soon after the first error or an interrupt.

    Files of this machine in progress are finished. A request to another one may take long: an interrupt leaves it.
    """
    stop, busy = threading.Event(), set[threading.Thread]()

    def finish(shard: Sequence[tuple[int, int]]) -> tuple[int, int]:
        busy.add(threading.current_thread())
        for number, _ in shard:
            if stop.is_set():
                break
            work(number)
        return len(shard), sum(size for _, size in shard)

    pool = ThreadPoolExecutor(threads or min(os.cpu_count() or 1, MAX_THREADS), "rayio-data")
    try:
        finished, of_bytes = (0, 0), sum(size for _, size in files)
        for done in as_completed([pool.submit(finish, shard) for shard in _shards(files)]):
            finished = (finished[0] + done.result()[0], finished[1] + done.result()[1])
            if progress is not None:
                progress(*finished, len(files), of_bytes)
        pool.shutdown()
    except BaseException as error:
        stop.set()
        leaves = isinstance(error, KeyboardInterrupt) and not is_local
        pool.shutdown(wait=not leaves, cancel_futures=True)
        if leaves:
            ends = time.monotonic() + LEAVE_SECONDS
            for thread in busy:
                thread.join(max(0.0, ends - time.monotonic()))
            signals.left_behind.update(busy)
        raise


def _shards(files: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
    first, num_bytes = 0, 0
    for place, (_, size) in enumerate(files):
        num_bytes += size
        if num_bytes >= SHARD_BYTES or place + 1 - first >= SHARD_FILES:
            yield files[first : place + 1]
            first, num_bytes = place + 1, 0
    if first < len(files):
        yield files[first:]

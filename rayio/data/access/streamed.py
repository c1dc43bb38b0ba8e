"""``loader.file_access: streamed``: files from front to back, in consecutive requests of one size.

TensorFlow's record readers, WebDataset and Arrow's record streams walk files like this. A worker keeps the file open
between batches, with the rest of its last request. Where samples are left out, it goes on at the next one it needs; it
never goes back, but opens the file again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayio.data.access.contract import ACCESSES, Access, Files
from rayio.data.access.held import WindowFile
from rayio.data.access.mixed import Mixed, after, due, taken
from rayio.data.access.parts import Asking, part_of
from rayio.data.formats import FORMATS, Format, form_of, layout_of, spans
from rayio.data.layout import Batch, Layout
from rayio.scenario.change import Change, with_keys
from rayio.scenario.shards import is_by_file
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant
from rayio.schema.fields import Section, quantity, whole
from rayio.storage.base import Opener, Requests
from rayio.units import BYTES

if TYPE_CHECKING:
    from rayio.scenario.change import Run
    from rayio.scenario.model import Scenario

#: Buffer of TensorFlow's record reader, and of most C++ streams that are read in order.
BUFFER_BYTES = 256 << 10
#: Factor by which larger requests are proposed.
LARGER = 4
#: Shuffles whose order no stream has.
JUMPING = ("global", "zipf")


class StreamedOptions(Section):
    """Options of a stream."""

    buffer_bytes: Annotated[int, quantity(BYTES, positive=True, integer=True)] = Field(
        BUFFER_BYTES, description="Bytes of each request."
    )
    num_parallel_reads: Annotated[int, whole(1)] = Field(
        1, description="Files that a worker reads at once, a sample of each in turn; with assignment by_file."
    )


class Stream(NamedTuple):
    """An open file: the offset after the last request, and after the last sample."""

    file: int
    until: int
    position: int
    #: The last window and the open file; None in a model.
    window: memoryview | None = None
    handle: Any = None


#: Streams of a worker, the oldest first.
Streams = tuple[Stream, ...]


class Streamed(Access):
    """A file is read once from front to back, through a handle that stays open."""

    options = StreamedOptions

    def cannot(self, form: Format, layout: Layout) -> str:
        """Return why a format's files cannot be read from front to back; empty if they can."""
        if spans(form, layout, layout.whole_file(0, 0, 1)) is not None:
            return ""
        name = next((name for name in FORMATS if FORMATS[name] is form), form.extension[1:])
        if layout.is_external:
            return f"{name} files of several samples by other programs are read whole"
        compressed = f" with dataset.compression={_compression(layout)}" if _by_compression(form, layout) else ""
        return f"{name} files{compressed} cannot be read from front to back"

    def memory(self, files: Files) -> float:
        """Return the bytes of the buffers."""
        return float(_size(files) * _most(files) + files.shuffled * files.layout.sample_bytes.expected)

    def is_joined(self, options: Section) -> bool:
        """Return False: each request has ``buffer_bytes``."""
        return False

    def setting(self, files: Files) -> str:
        """Return the size of the buffers, of bytes or of samples."""
        if files.shuffled:
            return f"loader.shuffle_buffer={files.shuffled}"
        return f"loader.buffer_bytes={BYTES.exact(_size(files))}"

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Refuse formats that cannot be streamed, and orders that are none of a file."""
        yield from super().contradictions(scenario)
        loader, layout = scenario.loader, layout_of(scenario)
        if reason := self.cannot(form := form_of(scenario.dataset.format, layout), layout):
            yield f"loader.file_access=streamed: {reason}; use {self._instead(form, layout)}"
        elif (parallel := getattr(loader.file_access_options, "num_parallel_reads", 1)) > 1 and not is_by_file(
            scenario
        ):
            yield (
                f"loader.num_parallel_reads={parallel}: only workers that own files read several at once; use "
                "loader.assignment=by_file"
            )
        elif loader.shuffle == "buffer" and not is_by_file(scenario):
            yield (
                "loader.file_access=streamed: only workers that own files shuffle a stream in a buffer "
                "(loader.shuffle=buffer); use loader.assignment=by_file"
            )
        elif loader.shuffle == "buffer" and scenario.storage.cache:
            yield "not yet: storage.cache with samples shuffled in a stream's buffer; leave storage.cache out"
        elif loader.shuffle in JUMPING and scenario.dataset.samples_per_file > 1:
            yield (
                f"loader.file_access=streamed: loader.shuffle={loader.shuffle} needs samples in no file's order; use "
                "loader.shuffle=file or none, or buffer with loader.assignment=by_file"
            )

    def _instead(self, form: Format, layout: Layout) -> str:
        """Return the settings with which files of a format that cannot be streamed are read."""
        able = [name for name, other in FORMATS.usable().items() if not self.cannot(other, _plain(other))]
        change = f"dataset.format={' or '.join(able)}, or "
        if layout.is_external:
            change = ""
        elif _by_compression(form, layout):
            change = "dataset.compression=none, or "
        accesses = [name for name in ("per_sample", "whole_file") if not ACCESSES[name].cannot(form, layout)]
        return f"{change}loader.file_access={' or '.join(accesses)}"

    def changes(self, run: Run) -> Iterator[Change]:
        """Yield a change to larger requests."""
        options = run.scenario.loader.file_access_options
        if isinstance(options, StreamedOptions):
            size = LARGER * options.buffer_bytes
            larger = with_keys("loader", file_access_options=options.model_copy(update={"buffer_bytes": size}))
            key = f"loader.buffer_bytes={BYTES.exact(size)}"
            yield Change(f"buffer_bytes × {LARGER}", kind="setting", to=larger, key=key)

    def requests(self, files: Files, batch: Batch, kept: Any) -> tuple[Requests, Any]:
        """Return the windows that are not in the buffer yet."""
        upcoming, known = batch.upcoming, kept if isinstance(kept, Mixed) else None
        if upcoming is None:
            return self._requests(files, batch, kept if known is None else known.streams)
        begin, end = due(upcoming, batch, known)
        requests, streams = self._requests(
            files, upcoming.samples(begin, end), None if known is None else known.streams
        )
        return requests, after(upcoming, batch, streams, end)

    def read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Any
    ) -> tuple[NDArray[np.int64], Any]:
        """Read the batch, or what fills the buffer that it leaves."""
        upcoming, known = batch.upcoming, kept if isinstance(kept, Mixed) else None
        if upcoming is None:
            return self._read(files, opener, batch, out, kept if known is None else known.streams)
        begin, end = due(upcoming, batch, known)
        fed = upcoming.samples(begin, end)
        content = np.empty(fed.total_bytes, np.uint8)
        _, streams = self._read(files, opener, fed, content, None if known is None else known.streams)
        left = taken(batch, fed, content, out, known, begin)
        return batch.samples.copy(), after(upcoming, batch, streams, end)._replace(samples=left)

    def _requests(self, files: Files, batch: Batch, kept: Streams | None) -> tuple[Requests, Streams | None]:
        streams, asking = list(kept or ()), Asking(files, batch)
        for turn in _turns(files, batch):
            stream = _take(streams, turn)
            opens = stream is None
            until = turn.first if stream is None else max(stream.until, turn.first)
            for start, stop in turn.ranges:
                until = max(until, start)
                if until < stop:
                    end = min(turn.size, until + -(-(stop - until) // _size(files)) * _size(files))
                    asking.add(turn.file, until, end, _size(files), opens=opens)
                    opens, until = False, end
            _keep(streams, Stream(turn.file, until, turn.last), turn, _most(files))
        return asking.requests, tuple(streams) or None

    def _read(
        self, files: Files, opener: Opener, batch: Batch, out: NDArray[np.uint8], kept: Streams | None
    ) -> tuple[NDArray[np.int64], Streams | None]:
        """Read each turn of a file with the format, through its window."""
        streams, ids = list(kept or ()), []
        offsets = [0, *np.cumsum(batch.nbytes).tolist()]
        for turn in _turns(files, batch):
            (begin, end), opened = turn.places, _Opened(files, opener, _take(streams, turn), turn)
            part = part_of(batch, slice(begin, end))
            ids.append(files.form.read(opened, files.layout, part, out[offsets[begin] : offsets[end]]))
            file = opened.file
            assert file is not None
            _keep(streams, Stream(turn.file, file.until, turn.last, file.last, file.file), turn, _most(files))
        return np.concatenate(ids) if ids else np.empty(0, np.int64), tuple(streams) or None

    def close(self, kept: Any) -> None:
        """Close the open files."""
        for stream in (kept.streams if isinstance(kept, Mixed) else kept) or ():
            if stream.handle is not None:
                stream.handle.close()


class _Turn(NamedTuple):
    """Samples of one file in ascending order: their places in the batch, and ranges of bytes in the file."""

    file: int
    size: int
    places: tuple[int, int]
    ranges: list[tuple[int, int]]

    @property
    def first(self) -> int:
        return self.ranges[0][0]

    @property
    def last(self) -> int:
        return self.ranges[-1][1]


class _Opened:
    """An opener of the file of a turn, which goes on with its stream if that is open."""

    def __init__(self, files: Files, opener: Opener, stream: Stream | None, turn: _Turn) -> None:
        self.opener, self.buffer_bytes, self.stream, self.first = opener, _size(files), stream, turn.first
        self.file: WindowFile | None = None

    def __call__(self, path: str) -> Any:
        stream, until, last = self.stream, self.first, memoryview(b"")
        if stream is None or stream.handle.closed:
            handle = self.opener(path)
        else:
            handle, until, last = self.opener(path, stream.handle), stream.until, stream.window or last
        self.file = WindowFile(handle, path, self.buffer_bytes, until - len(last), last)
        return self.file


def _plain(form: Format) -> Layout:
    return Layout(1, 1, Constant(value=1000), 0, form.extension, options_of(form)())


def _by_compression(form: Format, layout: Layout) -> bool:
    """Return True if files of a format that cannot be streamed could be without their compression."""
    plain = _plain(form)
    return _compression(layout) != "none" and spans(form, plain, plain.whole_file(0, 0, 1)) is not None


def _compression(layout: Layout) -> str:
    return getattr(layout.options, "compression", None) or "none"


def _most(files: Files) -> int:
    return files.options.num_parallel_reads if isinstance(files.options, StreamedOptions) else 1


def _size(files: Files) -> int:
    return files.options.buffer_bytes if isinstance(files.options, StreamedOptions) else BUFFER_BYTES


def _turns(files: Files, batch: Batch) -> Iterator[_Turn]:
    """Yield the turns of a batch, cut where the file changes and where its samples go back.

    Samples that follow each other in a file are one range: a format gives places of the first and the last one alone.
    """
    if not len(batch.files):
        return
    is_cut = (batch.files[1:] != batch.files[:-1]) | (batch.index[1:] != batch.index[:-1] + 1)
    is_first, is_last = np.append(True, is_cut), np.append(is_cut, True)
    rows = np.flatnonzero(is_first | is_last)
    edges_of_samples = spans(files.form, files.layout, part_of(batch, rows))
    assert edges_of_samples is not None, "a scenario with this format is refused"
    starts, stops = edges_of_samples
    begins = np.flatnonzero(is_first)
    sizes = files.form.file_bytes(files.layout, batch.files[begins])
    each = zip(
        batch.files[begins].tolist(), sizes.tolist(), begins.tolist(), (np.flatnonzero(is_last) + 1).tolist(),
        starts[is_first[rows]].tolist(), stops[is_last[rows]].tolist(), strict=True,
    )  # fmt: skip
    turn: _Turn | None = None
    for file, size, begin, end, start, stop in each:
        if turn is not None and file == turn.file and start >= turn.last:
            turn = turn._replace(places=(turn.places[0], end), ranges=[*turn.ranges, (start, stop)])
            continue
        if turn is not None:
            yield turn
        turn = _Turn(file, size, (begin, end), [(start, stop)])
    assert turn is not None
    yield turn


def _take(streams: list[Stream], turn: _Turn) -> Stream | None:
    """Remove and return the open stream of a turn's file; None if there is none, or it is past these samples."""
    for place, stream in enumerate(streams):
        if stream.file == turn.file:
            del streams[place]
            if stream.position <= turn.first:
                return stream
            if stream.handle is not None:
                stream.handle.close()
            return None
    return None


def _keep(streams: list[Stream], stream: Stream, turn: _Turn, most: int) -> None:
    """Keep an open stream as the newest; a file that was read to its end is closed, as is the oldest of too many."""
    done = [stream] if stream.position >= turn.size else []
    if not done:
        streams.append(stream)
        done = [streams.pop(0) for _ in range(len(streams) - most)]
    for old in done:
        if old.handle is not None:
            old.handle.close()

"""Laws of every format: what is written is read, with the requests that were planned, and nothing wrong is."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from options import drawn
from registered import every

from rayio.data.formats import FORMATS, Format, request_table
from rayio.data.formats.encoded import Encoded
from rayio.data.formats.sample import HEADER, Place, check, fill
from rayio.data.layout import Batch, Layout
from rayio.data.sampler import Sampler
from rayio.errors import DataError
from rayio.scenario.derive import least_sample_bytes
from rayio.schema.choice import options_of
from rayio.schema.distribution import Constant, Distribution, Uniform
from rayio.schema.fields import Section
from rayio.storage.base import READ, Opener, Places
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore

every_format = every(FORMATS)
#: Those that have files, which may be damaged, missing or another's.
every_stored = every(FORMATS, only=lambda form: getattr(form, "has_files", True))
SMALL = Uniform(low=16, high=60)
#: How a damaged file is told: which file, which sample, what was expected and what was found.
NAMED = r"00000000\d\.\w+: sample \d+ \(row \d+\): expected .*(found|its bytes give)"


def layout_of(
    name: str,
    num_files: int = 4,
    per_file: int = 3,
    size: Distribution = SMALL,
    seed: int = 5,
    options: Section | None = None,
) -> Layout:
    form = FORMATS[name]
    return Layout(num_files, per_file, size, seed, form.extension, options or options_of(form)())


def least(name: str, more: int = 0) -> Constant:
    """Give a size of samples: ``more`` than the least that the format can have."""
    return Constant(value=least_sample_bytes(options_of(FORMATS[name])()) + more)


def written(form: Format, layout: Layout, root: Path) -> None:
    for number in range(layout.num_files):
        path = root / layout.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            form.write(file, layout, number)
        for suffix in getattr(form, "beside", ()):
            path.with_suffix(suffix).write_bytes(beside(form, layout, number, suffix))


def beside(form: Any, layout: Layout, number: int, suffix: str) -> bytes:
    """Give the content of another file that belongs to a file."""
    file = io.BytesIO()
    form.write_beside(file, layout, number, suffix)
    return file.getvalue()


def content_of(form: Format, layout: Layout, number: int = 0) -> bytes:
    file = io.BytesIO()
    form.write(file, layout, number)
    return file.getvalue()


def batch_of(layout: Layout, samples: list[int]) -> Batch:
    ids = np.array(samples, np.int64)
    files, index = layout.locate(ids)
    return Batch(0, 0, 0, ids, files, index, layout.delivered_bytes_of(ids, files))


def read(form: Format, opener: Opener, layout: Layout, batch: Batch) -> tuple[list[int], list[bytes]]:
    """Read a batch into memory that holds something else; give the ids, and the bytes of each sample."""
    out = np.full(batch.total_bytes, 0xA5, np.uint8)
    ids = form.read(opener, layout, batch, out).tolist()
    ends = np.cumsum(batch.nbytes)
    return ids, [out[end - nbytes : end].tobytes() for end, nbytes in zip(ends, batch.nbytes.tolist(), strict=True)]


def in_memory(content: bytes, form: Format | None = None, layout: Layout | None = None) -> Opener:
    """Open the content; with format and layout, the other files of a file are as they were written."""

    def opened(path: str) -> io.BytesIO:
        place = Path(path)
        if layout is not None and place.suffix in getattr(form, "beside", ()):
            return io.BytesIO(beside(form, layout, int(place.stem), place.suffix))
        return io.BytesIO(content)

    return opened


def is_sample(form: Format, layout: Layout, sample: int, found: bytes) -> bool:
    """Whether bytes are a sample's: its own where the format stores them as they are, else such as agree with it."""
    files, index = layout.locate(np.array([sample]))
    whole = np.zeros(int(layout.sizes_of(np.array([sample]))[0]), np.uint8)
    if len(found) < len(whole):  # a part of it is not read
        return bool(HEADER.unpack_from(found)[0] == sample)
    if isinstance(form, Encoded):  # text or an image: never the bytes that other formats store
        form.fill(whole, layout, sample)
        return found == whole.tobytes()
    fill(whole, layout.seed, sample)
    place = Place(layout.path(int(files[0])), sample, int(index[0]))
    is_made = layout.options == type(layout.options)()
    return found == whole.tobytes() if is_made else check(memoryview(found), layout.seed, place) == sample


@every_format
@given(
    num_files=st.integers(1, 5),
    per_file=st.integers(1, 70),
    high=st.sampled_from([16, 50, 5000, 20000]),
    data=st.data(),
)
def test_what_is_written_is_read_in_any_order_with_the_planned_requests(  # type: ignore[no-untyped-def]
    name, num_files, per_file, high, data, tmp_path_factory
) -> None:
    form, root = FORMATS[name], tmp_path_factory.mktemp("dataset")
    options = data.draw(st.none() | drawn(options_of(form)))
    layout = layout_of(name, num_files, per_file, Uniform(low=16, high=high), options=options)
    if getattr(form, "sizes_vary", False) and data.draw(st.booleans()):
        layout = replace(layout, sizes="per_sample")
    written(form, layout, root)
    samples = data.draw(st.lists(st.integers(0, layout.num_samples - 1), unique=True, max_size=12))
    if data.draw(st.booleans()):
        samples.sort()
    batch, asked = batch_of(layout, samples), Traffic(0)
    ids, found = read(form, counted_opener(PosixStore(root), asked), layout, batch)
    assert ids == samples
    assert all(is_sample(form, layout, sample, content) for sample, content in zip(samples, found, strict=True))
    planned = form.requests(layout, batch)
    assert planned.address == (0, 0, 0)
    assert form.file_bytes(layout, batch.files).tolist() == [
        (root / layout.path(file)).stat().st_size for file in batch.files.tolist()
    ]
    for suffix in getattr(form, "beside", ()):
        sizes = getattr(form, "beside_bytes")(layout, batch.files, suffix).tolist()  # noqa: B009
        assert sizes == [len(beside(form, layout, file, suffix)) for file in batch.files.tolist()]
    assert (asked.opens, asked.requests, asked.nbytes) == (planned.num_opens, len(planned.nbytes), planned.total_bytes)
    assert planned.total_bytes == planned.nbytes.sum()
    assert asked.issued is not None
    rows = asked.issued.rows[asked.issued.rows["kind"] == READ]
    assert rows["nbytes"].tolist() == planned.nbytes.tolist()
    if planned.places is not None:
        files, file, offsets = planned.places()
        assert rows["offset"].tolist() == offsets.tolist()
        assert [asked.issued.files[number] for number in rows["file"]] == [files[number] for number in file]


@every_format
@given(
    per_file=st.integers(1, 4), low=st.sampled_from([16, 4096]), batch_size=st.integers(1, 6),
    shuffle=st.sampled_from(["none", "file", "global"]), steps=st.integers(1, 5), data=st.data(),
)  # fmt: skip
def test_the_requests_of_many_steps_at_once_are_those_of_each_step(  # type: ignore[no-untyped-def]
    name, per_file, low, batch_size, shuffle, steps, data
) -> None:
    form = FORMATS[name]
    layout = layout_of(name, 60, per_file, Uniform(low=low, high=20000), options=data.draw(drawn(options_of(form))))
    if getattr(form, "sizes_vary", False) and data.draw(st.booleans()):
        layout = replace(layout, sizes="per_sample")
    sampler = Sampler(layout, batch_size=batch_size, world_size=2, shuffle=shuffle, seed=1, max_steps=steps)
    block, row = sampler.block(0, 1, 0)
    assert row == 0
    table = request_table(form, layout, block.files, block.index, block.nbytes)
    if table is None:  # it has no shorter way
        return
    for step in range(steps):
        alone = form.requests(layout, sampler.batch(0, 1, step))
        together = table.row(step, (1, 0, step), 1)
        assert (together.address, together.num_opens) == (alone.address, alone.num_opens)
        assert together.nbytes.tolist() == alone.nbytes.tolist()
        assert together.total_bytes == alone.total_bytes == sum(alone.nbytes.tolist())
        if together.places is not None:
            assert alone.places is not None
            assert placed(together.places) == placed(alone.places)


def placed(places: Places) -> list[tuple[str, int]]:
    """Return the file and offset of each request; files are listed once."""
    files, file, offset, *_ = places()
    assert len({*files}) == len(files) == len({*file.tolist()})
    return [(files[number], begin) for number, begin in zip(file.tolist(), offset.tolist(), strict=True)]


@every_stored
@settings(max_examples=3, phases=[Phase.generate])  # each tries hundreds of places
@given(data=st.data())
def test_equal_layouts_give_equal_bytes_and_every_changed_one_is_noticed_or_harmless(name: str, data: Any) -> None:
    form, own = FORMATS[name], options_of(FORMATS[name])
    options = data.draw(st.just(own()) | drawn(own))
    layout = layout_of(name, 1, options=options)
    content, batch = content_of(form, layout), layout.whole_file(0)
    assert content == content_of(form, layout)
    assert content != content_of(form, layout_of(name, 1, seed=6, options=options))
    right = read(form, in_memory(content, form, layout), layout, batch)
    each, end = max(1, len(content) // 250), last_byte(form, layout, batch) or len(content)
    noticed = 0
    for place in range(0, len(content), each):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        noticed += not is_delivered(form, layout, bytes(changed), right)
        assert not is_delivered(form, layout, content[:place], right) or place >= end
    assert noticed >= (batch.total_bytes if options == own() and each == 1 else 1)


def last_byte(form: Format, layout: Layout, batch: Batch) -> int:
    """Give how many bytes of its file a batch needs: those up to the end of its last request; 0 if unknown."""
    planned = form.requests(layout, batch)
    return 0 if planned.places is None else int((planned.places()[2] + planned.nbytes).max())


def is_delivered(form: Format, layout: Layout, content: bytes, right: tuple[list[int], list[bytes]]) -> bool:
    """Whether a file with changed bytes is read, which is then as it was; else file and sample are named."""
    try:
        found = read(form, in_memory(content, form, layout), layout, layout.whole_file(0))
    except DataError as error:
        message = str(error)
    else:
        assert found == right
        return True
    assert re.search(NAMED, message), message
    assert "\n" not in message
    return False


@every_stored
@settings(max_examples=settings().max_examples // 2)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=9), st.integers(0, 9)), min_size=1, max_size=4),
    place=st.integers(0, 10**6), bit=st.integers(0, 7), data=st.data(),
)  # fmt: skip
def test_no_edit_and_no_flipped_bit_delivers_a_wrong_sample(  # type: ignore[no-untyped-def]
    name, edits, place, bit, data
) -> None:
    form = FORMATS[name]
    layout = layout_of(name, 1, size=Constant(value=300), options=data.draw(drawn(options_of(form))))
    content = content_of(form, layout)
    right = read(form, in_memory(content, form, layout), layout, layout.whole_file(0))
    flipped, edited = bytearray(content), bytearray(content)
    flipped[place % len(content)] ^= 1 << bit
    for start, put, removed in edits:
        edited[start % len(content) : start % len(content) + removed] = put
    for changed in (flipped, edited):
        is_delivered(form, layout, bytes(changed), right)


class Shrinking(io.BytesIO):
    """A file that is cut while it is being read: the end of its second row is gone when it is asked for."""

    def __init__(self, content: bytes, second: bytes) -> None:
        super().__init__(content)
        self.end = content.index(second) + 80

    def readinto(self, buffer: Any, /) -> int:
        left = max(0, self.end - self.tell())
        return super().readinto(memoryview(buffer)[:left])


@every_stored
def test_a_file_cut_while_it_is_read_never_delivers_what_the_buffer_held_before(name: str) -> None:
    form, layout = FORMATS[name], layout_of(name, 1, size=Constant(value=100))
    content, batch = content_of(form, layout), layout.whole_file(0)
    out = np.frombuffer(b"".join(read(form, in_memory(content, form, layout), layout, batch)[1]), np.uint8).copy()
    size = batch.total_bytes // 3
    second = out[size + 20 : size + 50].tobytes()  # of what comes after its id and checksum

    def shrinking(path: str) -> Any:
        return Shrinking(content, second) if path == layout.path(0) else in_memory(content, form, layout)(path)

    with pytest.raises(DataError, match=NAMED):
        form.read(shrinking, layout, batch, out)


def reading(name: str, root: Path, samples: list[int]) -> NDArray[np.int64]:
    """Read samples of a dataset, of which each has 24 bytes more than the least, from its files."""
    layout = layout_of(name, size=least(name, 24))
    batch = batch_of(layout, samples)
    out = np.zeros(batch.total_bytes, np.uint8)
    return FORMATS[name].read(counted_opener(PosixStore(root), Traffic()), layout, batch, out)


@every_stored
def test_files_of_another_place_another_dataset_or_another_size_are_told(name: str, tmp_path: Path) -> None:
    form, layout = FORMATS[name], layout_of(name, size=least(name, 24))
    first, second = (content_of(form, layout, number) for number in (0, 1))
    written(form, layout, tmp_path)
    for number, content in enumerate((second, first)):
        (tmp_path / layout.path(number)).write_bytes(content)
    with pytest.raises(DataError, match=r"sample 4 .*expected id 4, found the sample with id 1: files were swapped"):
        reading(name, tmp_path, [4])
    written(form, layout_of(name, size=least(name, 24), seed=6), tmp_path)
    with pytest.raises(DataError, match=r"sample 4 \(row 1\): .*checksum.*of another dataset"):
        reading(name, tmp_path, [4])
    for more in (8, 32):
        written(form, layout_of(name, size=least(name, more)), tmp_path)
        with pytest.raises(DataError, match=r"sample 4 \(row 1\): expected .*found"):
            reading(name, tmp_path, [4])


@every_stored
@pytest.mark.parametrize(
    "content", [b"", b"\0" * 5000, b"PK\5\6" + b"\0" * 18, b"%PDF-1.4 and more", b"\x89HDF\r\n\x1a\n" + b"\3" * 900]
)
def test_a_foreign_file_is_refused(name: str, content: bytes) -> None:
    layout = layout_of(name)
    with pytest.raises(DataError, match=r"sample 4 \(row 1\): expected .*found"):
        read(FORMATS[name], in_memory(content), layout, batch_of(layout, [4]))


@every_stored
def test_a_file_that_is_missing_or_a_folder_is_named_with_the_sample_that_is_missed(name: str, tmp_path: Path) -> None:
    form, layout = FORMATS[name], layout_of(name)
    written(form, layout, tmp_path)
    gone = tmp_path / layout.path(2)
    gone.unlink()
    for opener in (counted_opener(PosixStore(tmp_path), Traffic()), lambda path: (tmp_path / path).open("rb")):
        with pytest.raises(DataError, match=r"000000002\.\w+: sample 7 .*missing"):
            read(form, opener, layout, batch_of(layout, [0, 7]))
    gone.mkdir()
    with pytest.raises(
        DataError, match=r"sample 7 \(row 1\): it is a folder, not a file; put a regular file in its place"
    ):
        read(form, counted_opener(PosixStore(tmp_path), Traffic()), layout, batch_of(layout, [7]))

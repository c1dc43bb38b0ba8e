"""Laws of requests made ahead: at any depth, each format and access gets the same samples by the planned requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_accesses import every_walk, there, walk_of

from rayio.data.formats import FORMATS
from rayio.data.generate import write_file
from rayio.data.layout import Layout
from rayio.data.sampler import Sampler
from rayio.errors import DataError
from rayio.schema.choice import options_of
from rayio.schema.distribution import Uniform
from rayio.storage.base import READ, Issued, Requests
from rayio.storage.itemise import itemise
from rayio.storage.joining import MAX_BYTES, joined
from rayio.storage.real import RealStorage
from rayio.storage.stores.posix import PosixFile, PosixStore

T = TypeVar("T")
few = settings(max_examples=max(2, settings().max_examples // 25))


async def in_place(function: Callable[[], T]) -> T:
    return function()


def calls(issued: Issued) -> Counter[tuple[Any, ...]]:
    columns = ("file", "kind", "offset", "nbytes")
    rows = zip(*(issued.rows[name].tolist() for name in columns), strict=True)
    return Counter((issued.files[file], *row) for file, *row in rows)


@there
@every_walk
@few
@given(data=st.data())
def test_what_is_made_ahead_is_the_plan_and_the_samples_are_the_same(
    access: str, form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root, walked, files, batches = walk_of(access, form, data, tmp_path_factory.mktemp("data"))
    assert root is not None
    depth, gap = data.draw(st.sampled_from([1, 2, 16])), data.draw(st.sampled_from([0, 100, 1 << 20]))
    storage = RealStorage(PosixStore(root), in_place, 0, depth=depth)
    planned = kept = alone = None
    for batch in batches:
        requests, planned = walked.requests(files, batch, planned)
        requests = joined(requests, gap)
        out, plain = np.zeros(batch.total_bytes, np.uint8), np.zeros(batch.total_bytes, np.uint8)
        served = asyncio.run(
            storage.read(requests, lambda opener: walked.read(files, opener, batch, out, kept))  # noqa: B023
        )
        assert served.value is not None
        ids, kept = served.value
        nothing = Requests((0, 0, 0), 0, np.empty(0, np.int64))
        like = asyncio.run(
            RealStorage(PosixStore(root), in_place).read(
                nothing,
                lambda opener: walked.read(files, opener, batch, plain, alone),  # noqa: B023
            )
        )
        assert like.value is not None
        alone = like.value[1]
        assert ids.tolist() == batch.samples.tolist()
        assert out.tobytes() == plain.tobytes()
        assert (served.opens, served.requests, served.nbytes) == (
            requests.num_opens, len(requests.nbytes), requests.total_bytes,
        )  # fmt: skip
        assert served.issued is not None
        if len(requests.nbytes) and requests.places is not None:
            opens = np.zeros(requests.num_opens)
            sizes = requests.nbytes
            assert calls(served.issued) == calls(
                itemise(READ, 0, 1000, np.ones(len(sizes)), sizes, opens, places=requests.places)
            )
            if depth == 1:  # one after the other: in the plan's order
                rows = served.issued.rows[served.issued.rows["kind"] == READ]
                assert rows["nbytes"].tolist() == sizes.tolist()
    for left in (kept, alone):
        if left is not None:
            walked.close(left)


RANGES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 500), st.integers(1, 300)), min_size=1, max_size=30)


@given(ranges=RANGES, gap=st.sampled_from([0, 1, 40, 1000]))
def test_joined_requests_have_every_byte_and_no_two_of_them_are_close(
    ranges: list[tuple[int, int, int]], gap: int
) -> None:
    file, offset, nbytes = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    names = [f"{number}" for number in range(4)]
    asked = Requests((0, 0, 0), len(set(file.tolist())), nbytes, lambda: (names, file, offset))
    found = joined(asked, gap)
    if not gap:
        assert found is asked
        return
    assert found.places is not None
    _, files, offsets, *_ = found.places()
    got = [*zip(files.tolist(), offsets.tolist(), found.nbytes.tolist(), strict=True)]
    wanted: dict[int, set[int]] = {}
    for number, begin, length in ranges:
        wanted.setdefault(number, set()).update(range(begin, begin + length))
    expected = []
    for number in dict.fromkeys(file.tolist()):  # by hand: byte by byte
        points = sorted(wanted[number])
        begin = last = points[0]
        for point in points[1:]:
            if point - last - 1 > gap:
                expected.append((number, begin, last + 1 - begin))
                begin = point
            last = point
        expected.append((number, begin, last + 1 - begin))
    assert got == expected
    assert found.total_bytes == sum(length for _, _, length in expected)


def test_a_joined_request_has_a_limit_that_a_whole_object_has_not() -> None:
    def joining(*ranges: tuple[int, int]) -> list[int]:
        offset, nbytes = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
        places = partial(lambda *placed: placed, ["f"], np.zeros_like(offset), offset)
        sizes: list[int] = joined(Requests((0, 0, 0), 1, nbytes, places), 1 << 20).nbytes.tolist()
        return sizes

    many = [(n << 20, 1 << 20) for n in range(130)]
    assert sum(joining(*many)) == 130 << 20
    assert max(joining(*many)) <= MAX_BYTES
    large = 500 << 20  # with a header and a directory around it
    assert joining((0, 4096), (4096, large), (4096 + large, 4096)) == [large + 8192]


@pytest.mark.parametrize("form", [name for name in FORMATS if getattr(FORMATS[name], "has_files", True)])
def test_a_lost_or_cut_file_is_one_line_at_any_depth(form: str, tmp_path: Path) -> None:
    made = FORMATS[form]
    layout = Layout(8, 1, Uniform(low=5000, high=9000), 5, made.extension, options_of(made)())
    for number in range(8):
        write_file(layout, FORMATS[form], PosixStore(tmp_path), number)
    sampler = Sampler(layout, batch_size=8, world_size=1, shuffle="none", seed=1)
    batch, out = sampler.batch(0, 0, 0), np.zeros(1 << 20, np.uint8)
    requests = FORMATS[form].requests(layout, batch)
    lost = tmp_path / layout.path(5)
    content = lost.read_bytes()

    def message(depth: int) -> str:
        storage = RealStorage(PosixStore(tmp_path), in_place, 0, depth=depth)
        with pytest.raises(DataError) as error:
            asyncio.run(
                storage.read(
                    requests if depth else requests._replace(nbytes=requests.nbytes[:0]),
                    lambda opener: FORMATS[form].read(opener, layout, batch, out[: batch.total_bytes]),
                )
            )
        return str(error.value)

    for change in (lost.unlink, partial(lost.write_bytes, content[:3000])):
        change()
        assert layout.path(5) in message(0)
        assert message(4) == message(1) == message(0)


def test_a_file_is_closed_after_its_requests_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A number of a closed file is another file's soon: a read that is still under way would get that one's bytes.
    layout = Layout(3, 1, Uniform(low=5000, high=9000), 5, ".npz")
    for number in range(3):
        path = tmp_path / layout.path(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            FORMATS["npz"].write(file, layout, number)
    reading, wrong = Counter[int](), list[str]()
    fetch, close = PosixFile._fetch, PosixFile.close

    def fetched(file: PosixFile, position: int, buffer: Any) -> int:
        reading[id(file)] += 1
        try:
            return fetch(file, position, buffer)
        finally:
            reading[id(file)] -= 1

    def closed(file: PosixFile) -> None:
        close(file)
        if reading[id(file)]:
            wrong.append(file.shown)

    monkeypatch.setattr(PosixFile, "_fetch", fetched)
    monkeypatch.setattr(PosixFile, "close", closed)
    batch = Sampler(layout, batch_size=3, world_size=1, shuffle="none", seed=1).batch(0, 0, 0)
    requests = FORMATS["npz"].requests(layout, batch)

    def load(opener: Any) -> None:
        with opener(layout.path(0)):  # nothing is read of it
            pass
        raise DataError("enough")

    storage = RealStorage(PosixStore(tmp_path), in_place, 0, depth=8)
    for _ in range(50):
        with pytest.raises(DataError, match="enough"):
            asyncio.run(storage.read(requests, load))
    assert not wrong

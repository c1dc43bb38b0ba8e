"""Laws of every way to walk files, with every format: requests are the planned ones, and nothing kept is needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from options import drawn
from packages import toy_installed

from rayio.data.access.contract import ACCESSES, Access, Files
from rayio.data.access.joined import joined_table
from rayio.data.formats import FORMATS
from rayio.data.generate import write_file
from rayio.data.layout import Batch, Layout
from rayio.data.sampler import Sampler
from rayio.errors import ScenarioError
from rayio.schema.choice import options_of
from rayio.schema.distribution import Uniform
from rayio.storage.base import READ, Issued, Placed, Requests
from rayio.storage.itemise import itemise
from rayio.storage.joining import joined
from rayio.storage.real import counted_opener
from rayio.storage.stores.counted import Traffic
from rayio.storage.stores.posix import PosixStore
from scenarios import scenario


def _walks(access: str, form: str) -> bool:
    layout = Layout(1, 1, Uniform(low=16, high=16), 5, FORMATS[form].extension, options_of(FORMATS[form])())
    return not ACCESSES[access].cannot(FORMATS[form], layout)


with TemporaryDirectory() as folder, toy_installed(Path(folder)):
    PAIRS = list(product(ACCESSES, FORMATS))
    CANNOT = [pair for pair in PAIRS if not _walks(*pair)]
there = pytest.mark.usefixtures("toy_there")
#: Every access with every format that it can walk.
every_walk = pytest.mark.parametrize(("access", "form"), [pair for pair in PAIRS if pair not in CANNOT])
#: Each example is a dataset and several batches of it.
few = settings(max_examples=settings().max_examples // 6)


class Walk(NamedTuple):
    """A dataset on disk, an access to it, and the batches of one reader of it, in their order."""

    root: Path | None
    access: Access
    files: Files
    batches: list[Batch]


def walk_of(access: str, form: str, draw: st.DataObject, root: Path | None = None) -> Walk:
    """A small dataset in any layout of its format, to be walked in any order with any options; written to ``root``."""
    made, found = FORMATS[form], ACCESSES[access]
    num_files, per_file = draw.draw(st.integers(1, 4)), draw.draw(st.integers(1, 5))
    sizes = Uniform(low=16, high=draw.draw(st.sampled_from([40, 5000])))
    layout = Layout(num_files, per_file, sizes, 5, made.extension, draw.draw(drawn(options_of(made))))
    if getattr(made, "sizes_vary", False) and draw.draw(st.booleans()):
        layout = replace(layout, sizes="per_sample")
    assume(not found.cannot(made, layout))
    for number in range(num_files if root is not None else 0):
        assert root is not None
        write_file(layout, made, PosixStore(root), number)
    shuffle = draw.draw(st.sampled_from(["none", "file", "global"]))
    batch_size = draw.draw(st.integers(1, min(4, layout.num_samples)))
    sampler = Sampler(layout, batch_size=batch_size, world_size=1, shuffle=shuffle, seed=1, drop_last=False)
    batches = [sampler.batch(epoch, 0, step) for epoch in range(2) for step in range(sampler.steps(epoch, 0))]
    return Walk(root, found, Files(made, layout, draw.draw(drawn(options_of(found)))), batches)


def issued_in(requests: Requests) -> list[tuple[str, int, int, int]]:
    """Give what a model of storage records of requests: kind, file, offset and bytes of each."""
    number = len(requests.nbytes)
    opens = np.zeros(requests.num_opens)
    return calls(itemise(READ, 0, 1000, np.ones(number), requests.nbytes, opens, places=requests.places))


def by_name(requests: Requests) -> tuple[list[str], list[int]]:
    assert requests.places is not None
    placed = Placed(*requests.places())
    assert placed.offset is not None
    assert placed.opening is None
    return [placed.files[number] for number in placed.file.tolist()], placed.offset.tolist()


def calls(issued: Issued | None) -> list[tuple[str, int, int, int]]:
    assert issued is not None
    columns = ("file", "kind", "offset", "nbytes")
    rows = zip(*(issued.rows[name].tolist() for name in columns), strict=True)
    return [(issued.files[file], kind, offset, nbytes) for file, kind, offset, nbytes in rows]


def read(walk: Walk, batch: Batch, kept: Any) -> tuple[bytes, Traffic, Any]:
    """Read a batch; its samples have to be those that were wanted."""
    out, traffic = np.zeros(batch.total_bytes, np.uint8), Traffic(0)
    assert walk.root is not None
    ids, kept = walk.access.read(walk.files, counted_opener(PosixStore(walk.root), traffic), batch, out, kept)
    assert ids.tolist() == batch.samples.tolist()
    return out.tobytes(), traffic, kept


@there
@every_walk
@few
@given(data=st.data())
def test_what_is_read_is_asked_for_in_the_planned_requests_whatever_is_kept_or_lost(
    access: str, form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    walk = walk_of(access, form, data, tmp_path_factory.mktemp("data"))
    loses, known = data.draw(st.booleans()), dict[int, bytes]()
    planned = kept = None
    for batch in walk.batches:
        if loses and data.draw(st.booleans()):
            if kept is not None and data.draw(st.booleans()):  # a process that dies closes nothing
                walk.access.close(kept)
            kept = planned = None
        requests, after = walk.access.requests(walk.files, batch, planned)
        again, _ = walk.access.requests(walk.files, batch, planned)
        assert (again.num_opens, again.nbytes.tolist()) == (requests.num_opens, requests.nbytes.tolist())
        assert requests.address == (batch.rank, batch.epoch, batch.step)
        planned = after
        content, traffic, kept = read(walk, batch, kept)
        assert (traffic.opens, traffic.requests, traffic.nbytes) == (
            requests.num_opens, len(requests.nbytes), requests.total_bytes,
        )  # fmt: skip
        if requests.places is not None:
            assert issued_in(requests) == calls(traffic.issued)
        assert (kept is None) == (planned is None)
        ends = np.cumsum(batch.nbytes).tolist()
        for sample, nbytes, end in zip(batch.samples.tolist(), batch.nbytes.tolist(), ends, strict=True):
            assert content[end - nbytes : end] == known.setdefault(sample, content[end - nbytes : end])
    if kept is not None:
        walk.access.close(kept)


@there
@every_walk
@few
@given(data=st.data())
def test_the_requests_of_many_steps_at_once_are_those_of_each_step(access: str, form: str, data: st.DataObject) -> None:
    walk = walk_of(access, form, data)
    size = len(walk.batches[0].samples)
    steps = [batch for batch in walk.batches if batch.epoch == 0 and len(batch.samples) == size]
    arrays = (np.stack([getattr(batch, name) for batch in steps]) for name in ("files", "index", "nbytes"))
    table = walk.access.request_table(walk.files, *arrays)
    if table is not None:
        for row, batch in enumerate(steps):
            alone, kept = walk.access.requests(walk.files, batch, None)
            together = table.row(row, alone.address, size)
            assert kept is None
            assert (together.num_opens, together.nbytes.tolist()) == (alone.num_opens, alone.nbytes.tolist())


@there
@every_walk
@few
@given(
    steps=st.integers(1, 4), size=st.integers(1, 3), high=st.sampled_from([40, 20_000]),
    gap=st.sampled_from([0, 1, 5000, 1 << 20]), data=st.data(),
)  # fmt: skip
def test_joined_requests_of_many_steps_are_those_of_each_step_where_a_file_is_one_sample(
    access: str, form: str, steps: int, size: int, high: int, gap: int, data: st.DataObject
) -> None:
    made, found = FORMATS[form], ACCESSES[access]
    layout = Layout(12, 1, Uniform(low=16, high=high), 5, made.extension, data.draw(drawn(options_of(made))))
    assume(not found.cannot(made, layout))
    files = Files(made, layout, data.draw(drawn(options_of(found))))
    file = np.array(data.draw(st.permutations(range(12)))[: steps * size]).reshape(steps, size)
    index, nbytes = np.zeros_like(file), layout.delivered_bytes_of(file, file)
    table = joined_table(found, files, file, index, nbytes, gap, has_places=True)
    for step in range(steps if table is not None else 0):
        assert table is not None
        batch = Batch(0, 0, step, file[step], file[step], index[step], nbytes[step])
        alone = joined(found.requests(files, batch, None)[0], gap)
        together = table.row(step, alone.address, size)
        assert (together.num_opens, together.nbytes.tolist()) == (alone.num_opens, alone.nbytes.tolist())
        assert together.total_bytes == alone.total_bytes
        assert by_name(together) == by_name(alone)


@there
@pytest.mark.parametrize(("access", "form"), CANNOT)
def test_a_format_that_an_access_cannot_walk_is_refused_in_one_line(access: str, form: str) -> None:
    with pytest.raises(ScenarioError, match=rf"loader\.file_access={access}: {form} files .*; use ") as refused:
        scenario(loader__file_access=access, loader__shuffle="none", dataset__format=form)
    assert "\n" not in str(refused.value)

"""Files that are streamed (``loader.file_access: streamed``): consecutive requests of one size, each byte once."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from numpy.typing import NDArray
from walks import DATASET, bytes_read, opens, requests, walking

import rayio
from rayio.data.access.contract import ACCESSES, Files
from rayio.data.access.parts import part_of
from rayio.data.formats import FORMATS, layout_of, spans
from rayio.data.formats.tfrecord import TfRecord
from rayio.data.layout import Batch, Layout
from rayio.data.sampler import Sampler
from rayio.errors import ScenarioError
from rayio.model.loading import Kept, Load
from rayio.report.explain import explain
from rayio.scenario.model import Scenario
from rayio.schema.choice import options_of
from rayio.schema.distribution import Uniform
from scenarios import Outcome, run_locally, scenario, simulated

#: Sizes whose own lengths differ in their encoding.
VARIED = Uniform(low=100, high=20_000)
RECORDS = DATASET | {"format": "tfrecord"}


def streaming(**overrides: Any) -> Scenario:
    """Give a scenario whose workers stream TFRecord in requests of 3000 bytes, which no record begins at."""
    base = {"dataset": RECORDS, "loader__buffer_bytes": "3000 B"}
    return walking("streamed", **{**base, **overrides})


def total_bytes(wanted: Scenario) -> int:
    """Give the bytes of all files of a dataset."""
    layout = layout_of(wanted)
    return int(FORMATS[wanted.dataset.format].file_bytes(layout, np.arange(layout.num_files)).sum())


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("shuffle", ["file", "none"])
def test_a_real_run_and_its_simulation_make_the_same_list_of_requests(
    num_workers: int, shuffle: str, tmp_path: Path
) -> None:
    wanted = streaming(loader__num_workers=num_workers, loader__shuffle=shuffle)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_one_worker_reads_every_byte_once_and_opens_every_file_once() -> None:
    wanted = streaming(loader__num_workers=1, train__epochs=1, cluster__ranks_per_node=1)
    rows = simulated(wanted).all_rows
    assert bytes_read(rows) == total_bytes(wanted)
    assert opens(rows) == wanted.dataset.num_files


def test_a_batch_is_planned_from_the_edges_of_its_files() -> None:
    """A format gives places of each file's first and last sample, and the size of each file once."""
    wanted = streaming(loader__batch_size=16, loader__shuffle="none", loader__num_workers=1)
    layout, asked, form = layout_of(wanted), list[list[int]](), TfRecord()

    class Asked(TfRecord):
        def spans(self, layout: Layout, batch: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
            asked.append(batch.index.tolist())
            return form.spans(layout, batch)

        def file_bytes(self, layout: Layout, files: NDArray[np.int64]) -> NDArray[np.int64]:
            asked.append(files.tolist())
            return form.file_bytes(layout, files)

    files = Files(Asked(), layout, wanted.loader.file_access_options)
    ACCESSES["streamed"].requests(files, Sampler.from_scenario(wanted).batch(0, 0, 0), None)
    assert asked == [[0, 3] * 4, [0, 1, 2, 3]]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("sizes", ["per_file", "per_sample"])
def test_streamed_samples_follow_each_other_without_gaps(name: str, sizes: str) -> None:
    """So the places of the first and the last sample are the range of all between them, whatever was asked before."""
    layout = replace(layout_of(streaming()), sizes=sizes, extension=FORMATS[name].extension, num_files=100)
    layout = replace(layout, options=options_of(FORMATS[name])(), samples_per_file=300, sample_bytes=VARIED)
    for file in (0, 7, 54, 99):  # the labels of 0 and 54 have several lengths
        if (edges := spans(FORMATS[name], layout, whole := layout.whole_file(file))) is not None:
            assert edges[0][1:].tolist() == edges[1][:-1].tolist()
            assert edges[1][-1] <= FORMATS[name].file_bytes(layout, np.array([file]))[0]
            ends = spans(FORMATS[name], layout, part_of(whole, np.array([0, 299])))
            assert ends is not None
            assert [each.tolist() for each in ends] == [each[[0, -1]].tolist() for each in edges]


def test_epochs_and_evaluations_open_files_again(tmp_path: Path) -> None:
    evaluate = {"every": {"epochs": 1}, "compute": "100 us"}
    dataset = RECORDS | {"num_files": 1, "samples_per_file": 16, "eval": {"num_files": 1}}
    wanted = streaming(
        dataset=dataset, train__evaluate=evaluate, train__epochs=3, loader__num_workers=1, cluster__ranks_per_node=1
    )
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert opens(real.all_rows) == 6
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_reads_that_are_foreseen_take_as_long_as_those_of_tasks() -> None:
    columns = ("index", "epoch", "step", "start_ns", "duration_ns", "requests")
    foreseen, tasks = (
        sorted(tuple(row[c] for c in columns) for row in simulated(streaming(trace__level=level)).rows("read"))
        for level in ("batch", "io")
    )
    assert foreseen == tasks


def test_cosmoflow_reads_256_kb_at_a_time_wholly_consecutively(tmp_path: Path) -> None:
    """As published: 1024 files of which 256 samples are used, 8 MiB each, one worker a rank."""
    wanted = scenario(
        dataset={
            "path": "model://cosmoflow", "num_files": 8, "samples_per_file": 8, "sample_bytes": "8 MiB",
            "format": "tfrecord",
        },
        cluster={"nodes": 2}, loader={"file_access": "streamed", "num_workers": 1, "shuffle": "file"},
        train={"epochs": 1, "compute": "100 ms"}, storage={"model": "lustre-theta"}, trace={"level": "io"},
    )  # fmt: skip
    assert explain(rayio.simulate(wanted, root=tmp_path).path).access.consecutive_share == 1.0
    sizes = [row["bytes"] for row in simulated(wanted).all_rows if row["name"] == "io.read"]
    assert np.mean(np.array(sizes) == 256 << 10) > 0.96


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"dataset": DATASET}, "loader.file_access=streamed: npz files cannot be read from front to back; use "
         "dataset.format=tfrecord"),
        ({"dataset": {**DATASET, "format": "tfrecord", "compression": "gzip"}}, "tfrecord files with "
         "dataset.compression=gzip cannot be read from front to back; use dataset.compression=none, or "
         "loader.file_access=per_sample or whole_file$"),
        ({"dataset": {**DATASET, "format": "indexed_binary"}}, "or csv or tsv, or loader.file_access=per_sample$"),
        ({"dataset": {**DATASET, "path": "no", "format": "csv", "external": True}}, "csv files of several samples by "
         "other programs are read whole; use loader.file_access=per_sample or whole_file$"),
        ({"loader__shuffle": "global"}, "loader.file_access=streamed: loader.shuffle=global needs samples in no file's "
         "order; use loader.shuffle=file or none"),
        ({"loader__shuffle": "buffer", "loader__shuffle_buffer": 3}, "only workers that own files shuffle a stream in "
         r"a buffer \(loader.shuffle=buffer\); use loader.assignment=by_file"),
        ({"loader__buffer_bytes": 0}, "loader.buffer_bytes=0"),
        ({"loader__file_access": "per_sample"}, "only .*streamed.* has buffer_bytes, not per_sample"),
    ],
)  # fmt: skip
def test_what_no_stream_can_do_is_refused_in_one_line(overrides: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as refused:
        streaming(**overrides)
    assert "\n" not in str(refused.value)


def mixing(**overrides: Any) -> Scenario:
    """Give a scenario whose workers own files and shuffle samples in a buffer of 7."""
    base = {"loader__assignment": "by_file", "loader__shuffle": "buffer", "loader__shuffle_buffer": 7}
    return streaming(**{**base, **overrides})


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.filterwarnings("default")  # Ray's own
def test_actors_own_files_and_stream_them_as_the_model_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = mixing(cluster__ranks_per_node=1, loader__queue="in_rank", train__sync="none")
    rows: Any = rayio.run(wanted, engine="ray", out="run").spans().to_dict("records")
    assert requests(rows) == requests(simulated(wanted).all_rows)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("buffer", [1, 5, 1000])
def test_a_stream_with_a_shuffle_buffer_makes_the_same_requests_in_both(
    buffer: int, parallel: int, num_workers: int, tmp_path: Path
) -> None:
    wanted = mixing(loader__shuffle_buffer=buffer, loader__num_parallel_reads=parallel, loader__num_workers=num_workers)
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_samples_of_several_sizes_are_mixed_in_a_buffer_in_both(tmp_path: Path) -> None:
    sizes = {"kind": "uniform", "low": 100, "high": 4000}
    wanted = mixing(dataset={**DATASET, "format": "raw", "sizes": "per_sample", "sample_bytes": sizes})
    real = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert real.ledger.even
    assert requests(real.all_rows) == requests(simulated(wanted).all_rows)


def test_the_first_batch_fills_the_buffer_and_every_byte_is_still_read_once() -> None:
    alone = {"loader__num_workers": 1, "cluster__ranks_per_node": 1, "train__epochs": 1, "loader__shuffle_buffer": 20}
    wanted = mixing(**alone)
    rows = simulated(wanted).all_rows
    assert (bytes_read(rows), opens(rows)) == (total_bytes(wanted), 12)
    steps = requests(rows)
    first, later = steps["reader", "0-0", 0, 0], [steps.get(("reader", "0-0", 0, step), []) for step in range(1, 24)]
    needed = -(-(20 + 2 - 1) // 4)  # files that hold what fills the buffer and the first batch
    assert sum(name == "io.open" for name, *_ in first) == needed
    assert sum(name == "io.open" for made in later for name, *_ in made) == 12 - needed
    assert not any(later[-7:]), "the last batches empty the buffer"


@pytest.mark.parametrize("is_real", [False, True])
def test_a_worker_that_loses_its_shuffle_buffer_reads_again_and_delivers_the_same(
    is_real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = mixing()

    def run() -> Outcome:
        return run_locally(on_disk(wanted, tmp_path), tmp_path) if is_real else simulated(wanted)

    whole, keep, chance = run(), Load.keep, random.Random(1)

    def forget(load: Load, kept: Kept) -> None:
        if chance.random() < 0.7:
            keep(load, kept)
        else:
            load.loading.access.close(load.after)

    monkeypatch.setattr(Load, "keep", forget)
    careless = run()
    assert careless.ledger.even
    assert careless.tallies == whole.tallies
    assert bytes_read(careless.all_rows) > bytes_read(whole.all_rows)


def test_samples_of_a_buffer_are_mixed_and_take_memory() -> None:
    sampler = Sampler.from_scenario(mixing(loader__num_workers=1, cluster__ranks_per_node=1))
    order = np.concatenate([sampler.batch(0, 0, step).samples for step in range(24)])
    assert sorted(order.tolist()) == [*range(48)]
    assert not (np.diff(order) == 1).all()
    with pytest.raises(
        ScenarioError, match=r"loader.shuffle_buffer=500: a worker keeps .* KiB of the files, and the 4"
    ):
        mixing(loader__shuffle_buffer=500, cluster__memory="3 MB")
    mixing(loader__shuffle_buffer=500, cluster__memory="5 MB")

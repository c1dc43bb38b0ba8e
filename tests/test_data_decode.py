"""Decoding that is really done: the bytes that it claims are the bytes that it goes through, on every engine."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import struct
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import on_disk
from hypothesis import given
from hypothesis import strategies as st

import rayio
from rayio.data.decode import MAX_RATIO, PLAIN_BYTES, Checksum, Decompress, compressed
from rayio.errors import DataError, ScenarioError
from rayio.kinds import DECODES
from rayio.model.planning import plan_of
from rayio.scenario import checks
from rayio.scenario.decode import UndecodableError
from rayio.scenario.load import build, load
from rayio.scenario.write import json_schema, to_yaml
from scenarios import run_locally, scenario, simulated

CHECKSUM = {"kind": "checksum", "algorithm": "crc32", "passes": 3}
DECOMPRESS = {"kind": "decompress", "ratio": 4}


class Spy:
    """Stands in for a hash and keeps what it was given."""

    def __init__(self, gone_over: list[bytes], data: memoryview) -> None:
        gone_over.append(bytes(data))

    def digest(self) -> bytes:
        return b""


@given(st.sampled_from(["crc32", "sha256"]), st.integers(1, 4), st.lists(st.integers(16, 5000), min_size=1, max_size=5))
def test_a_checksum_goes_over_every_byte_of_every_sample_so_many_times(
    algorithm: str, passes: int, sizes: list[int]
) -> None:
    samples = np.random.default_rng(1).integers(0, 256, sum(sizes), np.uint8)
    gone_over: list[bytes] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zlib, "crc32", lambda data: gone_over.append(bytes(data)))
        patch.setattr(hashlib, "sha256", lambda data: Spy(gone_over, data))
        made = Checksum.model_validate({"algorithm": algorithm, "passes": passes})(samples, np.array(sizes))
    starts = np.cumsum([0, *sizes])
    assert gone_over == [samples[a:b].tobytes() for a, b in pairwise(starts) for _ in range(passes)]
    assert made == passes * sum(sizes)


@pytest.mark.parametrize("ratio", [1.0, 1.1, 2.0, 3.5, 8.0, float(MAX_RATIO)])
def test_what_is_inflated_has_the_stated_ratio_and_is_the_same_everywhere(ratio: float) -> None:
    data = compressed(ratio)
    assert len(zlib.decompress(data)) == PLAIN_BYTES
    assert PLAIN_BYTES / len(data) == pytest.approx(ratio, rel=0.01)
    made = compressed.__wrapped__(ratio)
    assert made == data
    sizes = np.array([3 * len(data) + 1000, len(data) // 2])
    decoding = pickle.loads(pickle.dumps(Decompress(ratio=ratio)))
    assert decoding(np.empty(0, np.uint8), sizes) == pytest.approx(ratio * sizes.sum(), rel=0.03)


@pytest.mark.parametrize(("decode", "factor"), [(CHECKSUM, 3), (DECOMPRESS, 4)], ids=["checksum", "decompress"])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_batch_is_really_decoded_where_there_are_bytes(
    tmp_path: Path, decode: dict[str, Any], factor: float, num_workers: int
) -> None:
    wanted = scenario(
        dataset__path="data", dataset__sample_bytes="200 kB", train__compute="100 us",
        loader__decode=decode, loader__num_workers=num_workers,
    )  # fmt: skip
    run = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert run.ledger.even
    decoded = {row["batch"]: row for row in run.rows("decode")}
    assert set(decoded) == {row["batch"] for row in run.rows("read")}
    assert len(run.rows("decode")) == 48
    assert {row["role"] for row in decoded.values()} == {"reader" if num_workers else "rank"}
    for row in decoded.values():
        assert row["bytes"] == pytest.approx(factor * 400_000, rel=0.02)
        assert row["duration_ns"] > 0


@pytest.mark.parametrize(
    ("decode", "milliseconds"),
    [
        ({"kind": "checksum"}, 2.0),
        ({"kind": "checksum", "passes": 3}, 6.0),
        ({"kind": "decompress"}, 2.0),
        ({"kind": "decompress", "ratio": 2, "per_sample": "1 ms"}, 4.0),
        ({"kind": "decompress", "ratio": 8}, 2.0 * 1.72 / 1.18),  # zlib's time is mostly that of its input
        ({"kind": "decompress", "ratio": 1}, 0.14),  # stored: a copy
    ],
)
def test_without_bytes_it_takes_what_the_rate_says(decode: dict[str, Any], milliseconds: float) -> None:
    run = simulated(loader__decode=decode | {"rate": "1 MB/s"})
    (taken,) = {row["duration_ns"] for row in run.rows("decode")}
    assert taken == pytest.approx(milliseconds * 1e6, rel=1e-6)
    assert {row["bytes"] for row in run.rows("decode")} == {0}
    assert len(run.rows("decode")) == 48


def test_the_rate_decides_nothing_where_there_are_bytes(tmp_path: Path) -> None:
    slow = CHECKSUM | {"rate": "1 B/s"}  # 2000 s a batch
    wanted = scenario(dataset__path="data", train__compute="100 us", loader__decode=slow)
    assert run_locally(on_disk(wanted, tmp_path), tmp_path).ledger.even


def test_without_bytes_and_without_a_rate_it_is_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"loader\.decode\.kind=checksum: dataset\.path=model://small has no bytes; give"
    ):
        scenario(loader__decode=CHECKSUM)
    real = scenario(dataset__path="data", loader__decode=CHECKSUM)
    with pytest.raises(
        ScenarioError, match=r"loader\.decode=checksum: modelled storage has no bytes; give loader\.decode\."
    ):
        rayio.simulate(real)
    assert plan_of(real, modelled=False).loading().decoding is not None


@pytest.mark.parametrize(
    "decode", [CHECKSUM | {"rate": "2 GB/s"}, DECOMPRESS | {"rate": "1 MB/s"}, {"kind": "checksum", "rate": 5}, "3 ms"]
)
def test_it_is_written_and_read_again(tmp_path: Path, decode: Any) -> None:
    wanted = scenario(loader__decode=decode)
    (tmp_path / "s.yaml").write_text(to_yaml(wanted))
    assert load(tmp_path / "s.yaml") == wanted


def test_an_editor_knows_the_kinds() -> None:
    kinds = json_schema()["$defs"]["Loader"]["properties"]["decode"]["anyOf"]
    known = {kind["properties"]["kind"]["const"] for kind in kinds if "properties" in kind}
    assert known >= {"constant", "normal", "checksum", "decompress"}


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        ({"kind": "checksum", "algorithm": "md5"}, "loader.decode.algorithm=md5: must be crc32 or sha256"),
        ({"kind": "checksum", "passes": 0}, "loader.decode.passes=0: must be a whole number of at least 1"),
        ({"kind": "decompress", "ratio": 17}, "loader.decode.ratio=17: must be a number from 1 to 16"),
        ({"kind": "decompress", "ratio": True}, "loader.decode.ratio=true: must be a number from 1 to 16"),
        ({"kind": "decompress", "passes": 2}, "loader.decode.passes=2: no such key"),
        ({"kind": "checksum", "rate": "fast"}, "loader.decode.rate=fast: not a number with a unit"),
        ({"kind": "jpeg"}, "decompress, image, numbers or json"),
        (
            {"passes": 2},
            "kind is missing; it must be constant, normal, lognormal, uniform, exponential, ramp, gamma, poisson, "
            "empirical, checksum, decompress",
        ),
    ],
)
def test_what_it_cannot_be_is_refused_with_what_it_can(decode: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        build({
            "name": "x", "dataset": {"path": "d", "num_files": 4, "sample_bytes": 100},
            "loader": {"decode": decode}, "train": {"compute": 1},
        })  # fmt: skip
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_times_stay_times_elsewhere() -> None:
    with pytest.raises(ScenarioError, match=r"train\.compute\.kind=checksum: must be constant"):
        scenario(train__compute={"kind": "checksum"})


@pytest.mark.parametrize(
    ("format", "kind"),
    [("jpeg", "image"), ("png", "image"), ("csv", "numbers"), ("tsv", "numbers"), ("json", "json"), ("jsonl", "json")],
)
def test_encoded_samples_are_decoded_by_their_library(tmp_path: Path, format: str, kind: str) -> None:
    wanted = scenario(
        dataset__path="data", dataset__format=format, dataset__sample_bytes="20 kB", train__compute="100 us",
        loader__decode={"kind": kind},
    )  # fmt: skip
    run = run_locally(on_disk(wanted, tmp_path), tmp_path)
    assert run.ledger.even
    # A batch has two samples: pixels are of 3.76 bits or 6.8, a number of 9 characters takes 8 bytes, text is text.
    ratio = {"jpeg": 8 / 3.76, "png": 8 / 6.8, "csv": 8 / 9, "tsv": 8 / 9}.get(format, 1)
    made = [row["bytes"] for row in run.rows("decode")]
    assert made == pytest.approx([ratio * 40_000] * len(made), rel=0.1)
    refused = "loader.decode.kind=image: decodes samples of dataset.format=jpeg or png, and dataset.format=npz"
    with pytest.raises(ScenarioError, match=re.escape(refused)):
        scenario(loader__decode={"kind": "image", "rate": "1 MB/s"})
    plain = scenario(dataset__format=format, dataset__sample_bytes="20 kB")
    assert any(f"loader.decode={{kind: {kind}}}" in line for line in checks.idle(plain))


def a_png_of(pixels: int) -> bytes:
    """Give a PNG that says that it is a square of so many pixels, which its few bytes inflate to."""
    edge = int(pixels**0.5)
    lines = zlib.compress(bytes(edge + 1) * edge, 9)
    header = struct.pack(">IIBBBBB", edge, edge, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", lines), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


@pytest.mark.parametrize(
    ("kind", "sample", "reason"),
    [
        ("image", lambda: a_png_of(200_000_000), "exceeds limit of"),
        ("image", lambda: a_png_of(10_000)[:-30], "image file is truncated"),
        ("image", lambda: b"GIF89a" + bytes(100), "cannot identify image file"),
        ("numbers", lambda: b"1,2,three,4", ""),
        ("json", lambda: b'{"text": "' + b"a" * 500, "Unterminated string"),
        ("json", lambda: b"[" * 100_000, "recursion"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_decoded_is_refused_with_the_reason_and_the_number_of_the_sample(
    kind: str, sample: Callable[[], bytes], reason: str
) -> None:
    decode = DECODES[kind]()
    good = {"image": a_png_of(100), "numbers": b"1,2", "json": b'{"text": "a"}'}[kind]
    bad = sample()
    both, sizes = np.frombuffer(good + bad, np.uint8), np.array([len(good), len(bad)])
    with pytest.raises(UndecodableError) as refused:
        decode(both, sizes)
    assert refused.value.number == 1
    assert reason in refused.value.reason


def test_a_sample_that_cannot_be_decoded_ends_the_run_in_a_line_with_file_and_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = on_disk(scenario(
        dataset__path="data", dataset__format="jsonl", dataset__sample_bytes="2 kB", train__compute="100 us",
        loader__decode={"kind": "json"}, loader__num_workers=0,
    ), tmp_path)  # fmt: skip
    monkeypatch.setattr(json, "loads", lambda text: [][0])
    with pytest.raises(DataError, match=r"\d{9}\.jsonl: sample \d+ \(row \d\): cannot be decoded: json: list index"):
        run_locally(wanted, tmp_path)

"""Uploads of large files to object stores: the model and the client send as many requests, and as many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from objects import Answer, Environ, Objects

from rayio.model.plan import Plan
from rayio.model.planning import plan_of
from rayio.predict.calibrate import learn
from rayio.storage import open as store_at
from rayio.storage.real import RealStorage
from rayio.storage.stores.opening import PART_BYTES, PARTS
from rayio.storage.uploads import upload_of
from scenarios import scenario, simulated

MB = 1 << 20
T = TypeVar("T")
#: A store in which only the time to the first byte counts.
STORE: dict[str, Any] = {"first_byte": "100 ms", "connection_bandwidth": "100 TB/s", "bandwidth": "100 TB/s"}


async def inline(function: Callable[[], T]) -> T:
    """Return what a function returns, without another thread."""
    return function()


def saving(nbytes: int, **model: Any) -> Any:
    saved = {"path": "saved", "every": {"epochs": 1}, "model": {"bytes": nbytes}, "request_bytes": MB}
    return scenario(
        cluster__ranks_per_node=1, train__epochs=1, checkpoint=saved, storage__model=STORE | model,
        dataset__num_files=40, loader__batch_size=2,
    )  # fmt: skip


def written(wanted: Any) -> tuple[float, int]:
    """Return the seconds and the requests of the checkpoint's write on the virtual clock."""
    (row,) = simulated(wanted).rows("write")
    return row["duration_ns"] / 1e9, row["requests"]


@pytest.mark.parametrize(
    ("parts", "rounds"), [(1, 1), (2, 3), (4, 3), (5, 4), (8, 4), (9, 5)], ids=lambda number: str(number)
)
def test_an_object_goes_up_four_parts_at_a_time(parts: int, rounds: int) -> None:
    """Rounds of 100 ms: a small object is one request; else one before, the parts in fours, and one after them."""
    seconds, requests = written(saving(parts * PART_BYTES, upload_parts=PARTS))
    assert seconds == pytest.approx(0.1 * rounds, abs=1e-4)
    assert requests == (1 if parts == 1 else parts + 2)


def test_the_bytes_of_parts_share_no_connection() -> None:
    by_byte = {"first_byte": "0 s", "connection_bandwidth": f"{PART_BYTES} B/s"}
    assert written(saving(8 * PART_BYTES, upload_parts=4, **by_byte))[0] == pytest.approx(2.0, abs=1e-3)
    narrow = by_byte | {"bandwidth": f"{2 * PART_BYTES} B/s"}
    assert written(saving(8 * PART_BYTES, upload_parts=4, **narrow))[0] == pytest.approx(4.0, abs=1e-3)


def test_files_are_written_one_request_after_another() -> None:
    seconds, requests = written(saving(16 * MB))
    assert seconds == pytest.approx(1.6, abs=1e-4)
    assert requests == 16


@pytest.mark.parametrize("name", ["s3", "s3-documented", "s3-express", "gcs", "azure-blob", "minio-nvme", "nvme"])
def test_presets_of_object_stores_upload_in_parts(name: str) -> None:
    plan: Plan = plan_of(saving(MB).model_copy(update={"storage": scenario(storage__model=name).storage}), True)
    assert plan.device.upload_parts == (1 if name == "nvme" else PARTS)


def test_parts_are_four_at_a_time_where_a_throttle_refuses_none() -> None:
    free = saving(8 * PART_BYTES, upload_parts=PARTS)
    throttle = {"reads_per_second": 1000, "writes_per_second": 1000}
    throttled = free.model_copy(update={"storage": scenario(storage__model=STORE | {"upload_parts": PARTS},
                                                            storage__throttle=throttle).storage})  # fmt: skip
    seconds, requests = written(throttled)
    assert seconds == pytest.approx(0.4, abs=1e-4)
    assert requests == 10


class Together:
    """A server's hold on parts until as many are there as should be in flight."""

    def __init__(self) -> None:
        self.parts = threading.Barrier(PARTS, timeout=20.0)
        self.most = self.now = 0
        self.lock = threading.Lock()

    def __call__(self, environ: Environ) -> Answer | None:
        if "partNumber" not in environ.get("QUERY_STRING", ""):
            return None
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.parts.wait()
        with self.lock:
            self.now -= 1
        return None


@pytest.mark.parametrize("parts", [1, 2 * PARTS])
def test_the_client_sends_the_requests_of_the_model(parts: int, objects: Objects, place: str) -> None:
    objects.forget()
    together, nbytes = Together(), parts * PART_BYTES
    with objects.misbehaving(together):
        served = asyncio.run(RealStorage(store_at(place), inline).write("saved", nbytes, MB, fsync=False))
    upload = upload_of(nbytes, MB, PARTS)
    assert together.most == (PARTS if parts > 1 else 0), "parts wait for each other, so as many were in flight"
    assert served.requests == len(upload.sizes) == len(objects.asked)
    assert written(saving(nbytes, upload_parts=PARTS))[1] == served.requests


def test_a_calibrated_bucket_uploads_in_parts(tmp_path: Any) -> None:
    """A fitted model uploads as the store that the checkpoints went to."""
    wanted = saving(8 * PART_BYTES, upload_parts=PARTS)
    files = {"dataset": wanted.dataset.model_copy(update={"path": "data"})}
    run = simulated(wanted)
    learned: dict[str, Any] = {}
    for path in ("s3://bucket/saved", "saved"):
        assert wanted.checkpoint is not None
        saved = wanted.checkpoint.model_copy(update={"path": path})
        info = {"engine": "ray", "rayio": "0", "modelled_storage": False, "root": str(tmp_path)}
        found = learn(run.spans, wanted.model_copy(update=files | {"checkpoint": saved}), info).scenario
        learned[path] = found.storage.model
    assert (learned["s3://bucket/saved"].upload_parts, learned["saved"].upload_parts) == (PARTS, 1)

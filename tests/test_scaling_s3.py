"""The packaged scenario of readers that follow a load, on Ray, with its dataset on a real S3 server that throttles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from objects import Answer, Environ, Objects, slow_down

import rayio
from rayio.place import batch_id

pytestmark = [pytest.mark.slow, pytest.mark.ray]

STEPS = 150
#: Seconds after which nothing is waited for any more.
GUARD = 600
#: The load: a step's compute falls to an eighth within 100 steps, and a batch takes a reader three answers at least.
SMALLER = (
    "cluster.ranks_per_node=1", f"dataset.num_files={STEPS}", "dataset.sample_bytes=20 kB", "loader.batch_size=1",
    "loader.num_workers={min: 1, max: 4, every: 500 ms}", "storage.max_attempts=20",
    "train.compute={kind: ramp, begin: 400 ms, end: 50 ms, steps: 100}",
)  # fmt: skip


class Far:
    """Reads that take as long as those of S3 do, and are refused where more than so many are under way."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds = seconds
        self.most = most
        self.refused: list[str] = []
        self._under_way = 0
        self._lock = threading.Lock()

    def __call__(self, environ: Environ) -> Answer | None:
        if environ["REQUEST_METHOD"] != "GET" or not environ["PATH_INFO"].endswith(".npz"):
            return None
        with self._lock:
            self._under_way += 1
            is_one_too_many = self._under_way > self.most
        try:
            if is_one_too_many:
                self.refused.append(environ["PATH_INFO"])
                return slow_down(environ)
            time.sleep(self.seconds)
            return None
        finally:
            with self._lock:
                self._under_way -= 1


def rayio_command(*arguments: str) -> str:
    """Run a command of its own: its Ray's workers have the credentials from its environment. Give its output."""
    environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", "from rayio.cli import main; main()", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=GUARD)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("home")
def test_readers_follow_a_load_on_s3_until_it_throttles_and_nothing_is_lost(objects: Objects) -> None:
    overrides = (f"dataset.path=s3://{objects.bucket()}/s3-autoscaled", *SMALLER)
    rayio_command("generate", "s3-autoscaled", *overrides)
    far = Far(0.3, most=2)
    with objects.misbehaving(far):
        said = rayio_command("run", "s3-autoscaled", *overrides, "--out", "runs/bucket")
    run = rayio.Run.open("runs/bucket")
    spans, result = run.spans(), run.result

    assert result["ledger"]["even"]
    taken = spans[spans["name"] == "data_wait"].sort_values("start_ns")["link"].tolist()
    assert taken == [batch_id(0, 0, step) for step in range(STEPS)]
    assert result["trace"]["recorded"] == result["trace"]["stored"]

    # more and more readers, and each that came read
    changes = [json.loads(text) for text in spans[spans["name"] == "scale"].sort_values("start_ns")["attributes"]]
    assert [changes[0]["from"], changes[0]["to"]] == [0, 1]
    assert changes[1]["to"] > changes[1]["from"] == 1
    assert result["scaling"]["most"] > 2
    assert {f"0-{worker}" for worker in range(3)} <= set(spans[spans["name"] == "read"]["index"])

    # what the server refused, and nothing else, was made again after a pause
    retries = spans[spans["name"] == "retry"]
    assert len(retries) == len(far.refused) > 0
    assert sorted(path.partition("/s3-autoscaled/")[2] for path in far.refused) == sorted(retries["file"])
    assert set(retries["attributes"]) == {'{"why":"503 SlowDown"}'}
    for _, of_batch in retries.sort_values("start_ns").groupby(["index", "step"]):
        attempt, before = 0, 0
        for begin, lasted in zip(of_batch["start_ns"], of_batch["duration_ns"], strict=True):
            attempt = attempt + 1 if begin - before < 5e6 else 1  # that of the same request follows at once
            assert lasted >= 50e6 * 2 ** (attempt - 1)  # half of a pause is drawn
            before = begin + lasted
    (note,) = [one for one in result["notes"] if "made again" in one]
    assert note.endswith(f"storage throttled {len(far.refused)} of them (503 SlowDown)")
    assert note in said

"""How fast spans leave a run: OTLP over HTTP and gRPC into a collector on this machine, Perfetto, OTLP JSON and CSV.

    python benchmarks/export.py [--spans 1000000]

Spans are those of a simulated training. The collector is a process of its own that takes every request, unpacks it and
counts its spans by the official classes after the clock has stopped; a number is only printed when all have arrived.
Goals: 150 000 spans/s by OTLP, 200 000 by Perfetto.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from rayio.engines.virtual import simulation
from rayio.export import exporting as exporting
from rayio.export.collectors.transport import connect
from rayio.model.ledger import Tally
from rayio.model.planning import plan_of
from rayio.scenario.load import build
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory

#: A collector: it prints its ports, keeps what comes, and at the end of its input says how many spans that was.
COLLECTOR = """
import gzip, sys, threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
taken = []
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        taken.append(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
def export(body, context):
    taken.append(body)
    return b""
http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=http.serve_forever, daemon=True).start()
server = grpc.server(ThreadPoolExecutor(4))
handler = grpc.method_handlers_generic_handler(
    "opentelemetry.proto.collector.trace.v1.TraceService", {"Export": grpc.unary_unary_rpc_method_handler(export)})
server.add_generic_rpc_handlers([handler])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(http.server_port, port, flush=True)
for line in sys.stdin:
    bodies, taken = taken, []
    requests = map(ExportTraceServiceRequest.FromString, bodies)
    print(sum(len(s.spans) for r in requests for of in r.resource_spans for s in of.scope_spans), flush=True)
"""


def simulated(number: int) -> pa.Table:
    """Give so many spans, or a few less."""
    ranks, steps = 64, max(10, number // (64 * 6))
    wanted: dict[str, Any] = {
        "name": "export",
        "cluster": {"nodes": 8, "ranks_per_node": 8},
        "dataset": {"path": "model://export", "num_files": 10**8, "sample_bytes": "100 KB"},
        "loader": {"batch_size": 4, "num_workers": 4, "decode": {"kind": "normal", "mean": "5 ms", "stdev": "1 ms"}},
        "train": {"epochs": 1, "steps": steps, "compute": {"kind": "normal", "mean": "100 ms", "stdev": "5 ms"}},
    }  # fmt: skip
    plan = plan_of(build(wanted), modelled=True)
    recorder, tallies = Recorder(), [Tally(rank) for rank in range(ranks)]
    simulation.simulate(plan, recorder, tallies)
    table = recorder.drain()
    assert table is not None
    return table.slice(0, number)


def measured(
    what: str, goal: int, directory: RunDirectory, work: Callable[[exporting.Chosen], tuple[int, str]]
) -> None:
    """Read the run anew, do the work, print its row."""
    wall, cpu = time.perf_counter(), time.process_time()
    number, remark = work(exporting.Chosen.of(RunDirectory.open(directory.path), "all"))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    aim = f"{goal:>9,}" if goal else f"{'':>9}"
    print(f"{what:<12}{number / wall:>12,.0f}{aim}{wall:>8.2f}{1e6 * cpu / number:>11.2f}  {remark}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--spans", type=int, default=1_000_000)
    number = parser.parse_args().spans
    with tempfile.TemporaryDirectory(prefix="rayio-export-") as folder:
        directory = RunDirectory.create(Path(folder) / "run", {"run_id": "rayio-benchmark", "engine": "local"})
        directory.write_spans(simulated(number), "part-00000")
        collector = subprocess.Popen(
            [sys.executable, "-c", COLLECTOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert collector.stdin is not None
        assert collector.stdout is not None
        by_http, by_grpc = collector.stdout.readline().split()

        def sent(url: str, grpc: bool) -> Callable[[exporting.Chosen], tuple[int, str]]:
            def work(chosen: exporting.Chosen) -> tuple[int, str]:
                sender = connect(url, grpc=grpc)
                done = exporting.send(chosen, sender)
                sender.close()
                assert done.is_whole, done
                return done.spans, f"and {done.added} roots, {done.requests} requests"

            return work

        def written(write: Callable[..., int], name: str) -> Callable[[exporting.Chosen], tuple[int, str]]:
            def work(chosen: exporting.Chosen) -> tuple[int, str]:
                spans = write(chosen, Path(folder) / name)
                return spans, f"{(Path(folder) / name).stat().st_size / spans:.1f} bytes per span"

            return work

        print(f"{'to':<12}{'spans/s':>12}{'goal':>9}{'s':>8}{'CPU us/span':>12}")
        for what, url, grpc in (("OTLP HTTP", f"http://127.0.0.1:{by_http}", False), ("OTLP gRPC", by_grpc, True)):
            address = url if not grpc else f"127.0.0.1:{url}"
            measured(what, 150_000, directory, sent(address, grpc))
            collector.stdin.write("\n")
            collector.stdin.flush()
            arrived = int(collector.stdout.readline())
            print(f"{'':<12}{arrived:>12,} spans arrived")
        measured("Perfetto", 200_000, directory, written(exporting.write_perfetto, "trace.pftrace.gz"))
        measured("OTLP JSON", 0, directory, written(exporting.write_json, "spans.jsonl"))
        measured("CSV", 0, directory, written(exporting.write_csv, "spans.csv"))
        collector.stdin.close()
        collector.wait(timeout=30)


if __name__ == "__main__":
    main()

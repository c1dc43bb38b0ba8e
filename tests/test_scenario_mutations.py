"""Scenario files changed in a thousand ways: each loads with finite numbers, or ends in one line; never otherwise."""

from __future__ import annotations

import copy
import math
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from hypothesis import settings

from rayio.errors import ScenarioError
from rayio.scenario import checks, derive
from rayio.scenario.derive import compute_times
from rayio.scenario.load import load
from rayio.scenario.model import Scenario
from rayio.scenario.source import packaged_folder
from rayio.scenario.write import to_yaml

#: Mutants of each kind: of the tree of keys and values, of the text, of the bytes.
MUTANTS = settings().max_examples
OF_THE_TREE, OF_THE_TEXT, OF_THE_BYTES = 4 * MUTANTS, 2 * MUTANTS, 2 * MUTANTS

#: No scenario may take longer than this to be read, nor hold more memory: a guard against hangs, not a measurement.
SECONDS, BYTES = 20, 256 << 20

#: Every section and most kinds of value, so that a mutation has something to hit.
FULL = """\
name: full
source: made here
seed: 3
cluster: {nodes: 2, ranks_per_node: 2, roles_per_actor: auto, placement: spread, start_deadline: 2 min}
dataset:
  path: data/full
  format: npz
  num_files: 64
  samples_per_file: 4
  sample_bytes: {kind: lognormal, median: 2 MiB, sigma: 0.5, max: 8 MiB}
storage:
  model: {first_byte: {kind: exponential, mean: 1 ms}, open: 100 us, connection_bandwidth: 100 MB/s, bandwidth: 1 GB/s,
          requests_per_second: 1000, scope: cluster}
loader: {batch_size: 4, num_workers: 2, prefetch_factor: 3, shuffle: block, shuffle_block: 16, decode: 1 ms,
         max_bytes_in_flight: 1 GiB, partition: strided, scaling: weak}
train:
  epochs: 3
  steps: 8
  compute: {kind: normal, mean: 100 ms, stdev: 5 ms}
  sync: {kind: allreduce, bytes: 100 MB, bandwidth: 100 Gbit/s, latency: 20 us}
  parallelism: {tensor: 2, pipeline: 2, zero_stage: 1}
checkpoint: {every: {steps: 5}, path: checkpoints/full, model: {bytes: 500 MB}, writers: {dedicated: 2}, fsync: true}
expect: {au: ">= 0.90", percentiles.data_wait.p99: "< 1"}
costs: {lease: 1 ms, take: 1 ms, put: 1 ms, transfer_bandwidth: 1 GB/s}
"""

SOURCES = [FULL, *(path.read_text() for path in sorted(packaged_folder().glob("*.yaml")))]

#: What a value may become: of another type, huge, tiny, negative, not a number, text that means something to somebody.
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 10**6, 10**12, 2**53 + 1, 2**63, 2**64, 10**30, 10**308, 10**400, -(10**400), 0.0,
    -0.0, 0.5, 1e-300, 5e-324, 1e15, 1e300, 1.7e308, math.inf, -math.inf, math.nan, "", " ", "0", "-1", "nan", "inf",
    "1e999", "1e308 s", "9" * 400, "9" * 5000, "9" * 400 + " PiB", "1e999 PiB", "1e300 B", "1 EB", "-3 ms", "٣ ms",
    "3 \u00b5s", "3 \u03bcs", "½ s", "1_0__0 B", "0x10", "1:30:00", "none", "null", "auto", "~",
    "!!python/object:os.system", "model://", "model://x/../y", "s3://b", "../..", "/dev/null", "C:\\x", "a\nb",
    "a\x00b", "\x1b[31m", "\u2028", "\U0001f600", "\ud7ff", "\ufeff", "é" * 3000, "%s%n{0}", "{}", "a.b.c", [], {},
    [1], [[]], {"kind": "normal"}, {"kind": "uniform", "low": 0, "high": 1e308}, {"kind": None}, {"": 1},
    {"kind": "normal", "mean": 1e300, "stdev": 1e300}, {"kind": "normal", "mean": 0, "stdev": 1e308},
    {"kind": "normal", "mean": 5e-324, "stdev": 1e300}, {"kind": "normal", "mean": 1e300, "stdev": 5e-324},
    {"kind": "lognormal", "median": 1e300, "sigma": 10},
    {"kind": "lognormal", "median": 5e-324, "sigma": 10, "max": 1},
    {"kind": "lognormal", "median": 1e300, "sigma": 5e-324, "max": 1e300}, {"kind": "exponential", "mean": 1e300},
    {"kind": [], "mean": 1}, {"kind": {"kind": "normal"}}, {"steps": 1, "epochs": 1}, {"dedicated": 10**9},
    {"dedicated": 10**15}, {"min": 1, "max": 2}, {"nodes": {"nodes": {}}},
)  # fmt: skip


def value_of(draw: random.Random) -> Any:
    """Draw a value that nobody else holds."""
    return copy.deepcopy(draw.choice(VALUES))


def deep(value: Any, levels: int, draw: random.Random) -> Any:
    for _ in range(levels):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the way to every key."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        yield (*path, key)
        yield from paths(value, (*path, key))


def mutate_tree(tree: dict[str, Any], draw: random.Random) -> None:
    """Drop, rename, add, move or change a key."""
    *parents, key = draw.choice([*paths(tree)] or [("x",)])
    node = tree
    for parent in parents:
        node = node[parent]
    match draw.randrange(8):
        case 0:
            node.pop(key, None)
        case 1:
            name = draw.choice([key[:-1], key + "s", key.upper(), key[::-1], "", " ", "é", "x" * 500, "a.b", "\u202e"])
            node[name] = node.pop(key, None)
        case 2:
            node[draw.choice(["bytes", "kind", "mean", "extends", "nodes", "<<", "x"])] = value_of(draw)
        case 3:
            tree[key] = copy.deepcopy(node.get(key))
        case 4:
            node[key] = deep(value_of(draw), draw.choice([1, 3, 30, 70]), draw)
        case 5:
            other = draw.choice([*paths(tree)] or [("x",)])
            node[key] = copy.deepcopy(tree.get(other[0]))
        case _:
            node[key] = value_of(draw)


def of_the_tree(draw: random.Random) -> bytes:
    tree = yaml.safe_load(draw.choice(SOURCES))
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        mutate_tree(tree, draw)
    return yaml.safe_dump(tree, allow_unicode=draw.random() < 0.5, width=draw.choice([80, 10**6])).encode()


def bomb(draw: random.Random) -> str:
    """Aliases of aliases: a few hundred bytes that stand for up to 9 ** 9 values."""
    kind, levels = draw.choice(["[{}]", "{{{}}}"]), draw.choice([3, 9, 30])
    lines = ["a0: &a0 [x, x]" if kind == "[{}]" else "a0: &a0 {x: y}"]
    for level in range(1, levels):
        inner = ", ".join(f"{'' if kind == '[{}]' else f'k{n}: '}*a{level - 1}" for n in range(9))
        lines.append(f"a{level}: &a{level} " + kind.format(inner))
    return "\n".join(lines) + f"\nloader: *a{levels - 1}\n"


def merges(draw: random.Random) -> str:
    """Merge keys of merge keys, which YAML copies one into the other."""
    lines = ["m0: &m0 {a: 1}"]
    lines += [
        f"m{level}: &m{level} {{<<: [{', '.join([f'*m{level - 1}'] * 9)}], k{level}: 1}}"
        for level in range(1, draw.choice([3, 20]))
    ]
    return "\n".join(lines) + "\n"


#: Text that goes somewhere into a file.
SNIPPETS = (
    "<<: *x\n", "&a [*a]\n", "a: &a {b: *a}\n", "? [1, 2]\n: 3\n", "--- \n", "...\n", "!!binary abc\n", "%YAML 9.9\n",
    "\t", "\x85", "!!set {a, b}\n", "!!omap [a: 1]\n", "!!timestamp 2001-99-99\n",
    "x: 2001-12-14t21:59:43.10-05:00\n", "x: 0o777\n", "x: 190:20:30\n", "x: .inf\n", "x: -.NaN\n", "x: 1e+400\n",
    "x: 0b" + "1" * 20_000 + "\n", "x: " + "9" * 20_000 + "\n", "x: 0x" + "f" * 20_000 + "\n",
    "x: " + ":".join(["59"] * 5000) + "\n", "x: " + ":".join(["59"] * 500) + ".5\n", "[" * 200, "{" * 200,
    "[" * 20_000, "{a: " * 5_000, "- " * 5_000, "? " * 2_000, "'", '"', "|\n", ">\n", "!", "&", "*", "@", "`",
    "# \x00\n", "\ufeff", "\u2028", "x: \"\\ud800\"\n", "x: \"\\U00110000\"\n", "x: " + "a" * 200_000 + "\n",
    "extends: x.yaml\n", "extends: unet3d-small\n", "extends: /dev/null\n", "extends: [unet3d-small]\n",
    "extends: .\n", "extends: \"\\0\"\n", "extends: " + "x" * 5_000 + "\n", "x: !!int abc\n", "x: !!float abc\n",
    "x: !!bool abc\n", "x: !!null abc\n", "x: !!str [a]\n", "x: !!int {}\n", "!!int {}: x\n", "x: !!map [a]\n",
    "x: !!seq {a: b}\n", "x: !!timestamp []\n", "x: !!merge x\n", "=: 1\n", "x: =\n", "x: 1_\n", "x: 0x_\n",
    "x: 0b_\n", "x: +_\n", "x: -0o\n", "x: 00:00\n", "x: ._\n", "x: 1__2.e+1\n",
)  # fmt: skip


def of_the_text(draw: random.Random) -> bytes:
    """Lines dropped, doubled, moved, indented, cut; odd pieces of YAML put in."""
    text = draw.choice(SOURCES)
    match draw.randrange(6):
        case 0:
            return bomb(draw).encode() + text.encode() * draw.randrange(2)
        case 1:
            return merges(draw).encode() + text.encode() * draw.randrange(2)
    lines = text.splitlines(keepends=True)
    for _ in range(draw.choice([1, 1, 2, 5])):
        at = draw.randrange(len(lines))
        match draw.randrange(6):
            case 0:
                lines.insert(at, lines[draw.randrange(len(lines))])
            case 1:
                lines.append(lines.pop(at))
            case 2:
                lines[at] = " " * draw.choice([1, 2, 40]) + lines[at]
            case 3:
                place = draw.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + draw.choice(SNIPPETS) + lines[at][place:]
            case _:
                lines.insert(at, draw.choice(SNIPPETS))
    return "".join(lines).encode("utf-8", "surrogatepass")


def of_the_bytes(draw: random.Random) -> bytes:
    """Bytes flipped, cut off, repeated, put in another encoding."""
    content = bytearray(draw.choice(SOURCES).encode())
    match draw.randrange(6):
        case 0:
            return bytes(content[: draw.randrange(len(content))])
        case 1:
            start = draw.randrange(len(content))
            return bytes(content[start:])
        case 2:
            return content.decode().encode(draw.choice(["utf-16", "utf-32", "utf-8-sig", "cp037"]))
        case 3:
            return bytes(draw.randbytes(draw.choice([1, 10, 1000])))
    for _ in range(draw.choice([1, 1, 3, 30])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    return bytes(content)


@contextmanager
def guarded() -> Iterator[None]:
    """Turn a hang into a failure that shows where it hangs, and bound the memory that this process ever had."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        yield
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) << 10 < BYTES
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(content: bytes) -> bool:
    """Load a file of these bytes, and hold what comes out against the rule; say whether it was a scenario."""
    Path("x.yaml").write_bytes(content)
    with guarded():
        try:
            scenario = load("x.yaml")
        except ScenarioError as error:
            line = str(error)
            assert line
            assert len(line.splitlines()) == 1, line
            assert line.isprintable(), line
            assert len(line) < 1000, line
            return False
        assert isinstance(scenario, Scenario)
        for name, value in checks.table(scenario).items():
            # A rank that computes in no time asks for data infinitely fast; everything else is a finite number.
            is_instant = name.endswith("read_demand") and compute_times(scenario).expected == 0
            assert (math.isfinite(value) and value >= 0) or is_instant, (name, value)
        checks.idle(scenario)
        assert len(derive.checkpoint_shards(scenario)) < 1 << 21
    return True


@pytest.fixture(autouse=True)
def _beside_what_is_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in packaged_folder().glob("*.yaml"):  # some extend another
        shutil.copy(path, tmp_path)


def test_the_scenarios_that_are_mutated_are_sound() -> None:
    assert all(check(text.encode()) for text in SOURCES)


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("mutant", "number"),
    [(of_the_tree, OF_THE_TREE), (of_the_text, OF_THE_TEXT), (of_the_bytes, OF_THE_BYTES)],
    ids=["tree", "text", "bytes"],
)
def test_a_mutated_scenario_is_a_scenario_or_one_line(mutant: Callable[[random.Random], bytes], number: int) -> None:
    sound = 0
    for seed in range(number):
        content = mutant(random.Random(f"{mutant.__name__}-{seed}"))
        try:
            sound += check(content)
        except BaseException as error:
            error.add_note(f"mutant {seed} of {mutant.__name__}: {content[:3000]!r}")
            raise
    assert 0 < sound < number  # some mutants are scenarios still, and some are not: both halves were tested


@pytest.mark.hypothesis
def test_a_mutant_that_loads_is_written_and_read_back_the_same() -> None:
    again = 0
    for seed in range(10 * MUTANTS):
        if again > MUTANTS // 10:
            return
        Path("x.yaml").write_bytes(of_the_tree(random.Random(f"again-{seed}")))
        try:
            scenario = load("x.yaml")
        except ScenarioError:
            continue
        Path("y.yaml").write_text(to_yaml(scenario), encoding="utf-8")
        assert load("y.yaml") == scenario, seed
        again += 1
    pytest.fail(f"only {again} mutants are scenarios")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(random.Random(1)), "more than 10000 values, aliases counted as what they stand for"),
        (merges(random.Random(0)), "more than 10000 values"),
        ("x: " + "a" * (1 << 20), "x.yaml: is larger than 256 KiB, so it is no scenario"),
        ("x: !!bool maybe", "x.yaml: not YAML: a number or date that cannot be"),
        ("x: !!timestamp soon", "x.yaml: not YAML: a number or date that cannot be"),
        ("x: " + ":".join(["59"] * 500) + ".5", "x.yaml: not YAML: a number or date that cannot be"),
        ("x: 0x" + "f" * 20_000, "x=<a number of 80000 bits>: no such key"),
        ("dataset: {num_files: -010}",
         "x.yaml:1: dataset.num_files: -010 begins with 0, which makes it octal in YAML; write -10"),
        ("extends: " + "x" * 5_000, "extends=xxx"),
        ("extends: /dev/zero", "/dev/zero: cannot be read: it is a device, not a file"),
        ("? '\u202e'\n: 1", "'\\u202e'=1: no such key"),
        ("extends: unet3d-small\nseed: 99999999999999999999", "seed=99999999999999999999: must be at most 92233720"),
        ("extends: unet3d-small\ntrain: {compute: 1e300}",
         "train.compute=1e300: must be at most 1000000000 s"),
    ],
)  # fmt: skip
def test_what_the_mutants_found_is_refused_in_these_words(text: str, said: str) -> None:
    Path("x.yaml").write_text(text, encoding="utf-8")
    with guarded(), pytest.raises(ScenarioError) as caught:
        load("x.yaml")
    assert said in str(caught.value)
    assert str(caught.value).isprintable()

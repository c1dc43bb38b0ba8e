"""The rules of the house that a linter cannot state: who may import whom, and how big a room may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from rayio.kinds import DECODES, FORMATS

ROOT = Path(__file__).parents[1] / "rayio"
FILES = sorted(ROOT.rglob("*.py"))

#: Rooms by how high they stand; a module imports from strictly lower rooms, or from its own.
LEVEL = {
    "errors": 0, "units": 0, "seeds": 0, "registry": 0, "kinds": 0, "files": 0, "signals": 0, "place": 0, "reporter": 0,
    "version": 0, "machine": 0, "records": 0, "schema": 0,
    "storage": 1,
    "scenario": 2, "trace": 2,
    "data": 3, "imports": 3, "storage.layers": 3,
    "model": 4, "analyze": 4, "export": 4,
    "engines": 5,
    "predict": 6,
    "report": 7,
    "session": 8,
    "study": 9, "remote": 9,
    "cli": 10,
}  # fmt: skip

#: Rooms within a room that stand higher than it: a layer owns its keys, so it knows what a scenario is made of.
WITHIN = {"storage.layers"}

#: The package's own front doors, which stand above all.
DOORS = {"__init__", "__main__"}


def room(path: Path) -> str:
    """Name the room that a file is in: a folder, or a module at the top."""
    return room_of(path.relative_to(ROOT).with_suffix("").parts)


def room_of(parts: Sequence[str]) -> str:
    """Name the room of a module by the parts of its name without ``rayio``."""
    within = ".".join(parts[:2])
    return within if within in WITHIN else parts[0]


#: Reading a file as Python takes longer than all that is looked for in it.
parsed = cache(ast.parse)


@cache
def nodes(source: str) -> list[ast.AST]:
    """Every node of a source."""
    return [*ast.walk(parsed(source))]


def named_late(node: ast.AST) -> str | None:
    """The module that a call of ``import_module`` names: it is imported as any other."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module":
        name = node.args[0]
        return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
    return None


def rooms_in(source: str) -> Iterator[str]:
    """Give each room of rayio that a module imports from, whether on top, inside a function or for types only."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "rayio":
            names = [f"rayio.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif (late := named_late(node)) is not None:
            names = [late]
        else:
            continue
        found = (name.split(".") for name in names)
        yield from (room_of(parts[1:]) for parts in found if parts[0] == "rayio" and len(parts) > 1)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def reaches_up(here: str, other: str) -> bool:
    """Whether an import does not point downwards; the modules on the ground floor stand in one folder."""
    if other == here:
        return False
    return LEVEL[other] >= LEVEL[here] and not LEVEL[other] == LEVEL[here] == 0


def test_imports_point_downwards() -> None:
    found = [
        f"{named(path)} reaches up to rayio.{other}"
        for path in FILES
        if (here := room(path)) not in DOORS
        for other in rooms_in(path.read_text(encoding="utf-8"))
        if reaches_up(here, other)
    ]
    assert not found


def module(path: Path) -> str:
    """The dotted name of a file's module."""
    return ".".join(("rayio", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def modules_in(source: str, known: frozenset[str]) -> Iterator[str]:
    """Each known module that a source imports; a folder only where something of its own front door is taken."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif (late := named_late(node)) in known:
            yield str(late)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else node.module for name in inner)


def circles(imports: dict[str, set[str]]) -> list[str]:
    """The modules that are left when those that import none of the others are taken away, again and again."""
    left = {name: wanted - {name} for name, wanted in imports.items()}
    while free := [name for name, wanted in left.items() if not wanted & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_files_import_each_other_in_a_circle() -> None:
    known = frozenset(map(module, FILES))
    imports = {module(path): {*modules_in(path.read_text(encoding="utf-8"), known)} for path in FILES}
    del imports["rayio"]  # the door above all, whose version some of them say
    assert len(imports) > 150
    assert circles(imports) == []


def test_circles_are_found_however_long_they_are_and_whatever_they_are_for() -> None:
    known = frozenset({"rayio.a", "rayio.a.b", "rayio.a.c"})
    assert {*modules_in("from rayio.a import b, thing\nimport rayio.a.c, os", known)} == {
        "rayio.a", "rayio.a.b", "rayio.a.c",
    }  # fmt: skip
    for_types = "if TYPE_CHECKING:\n    from rayio.a.c import C\ndef f():\n    from rayio.a import b"
    assert [*modules_in(for_types, known)] == ["rayio.a.c", "rayio.a.b"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["a", "b", "c"]
    assert circles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


#: What is of a whole scenario, and not of one section; with its room, out of which modules are imported by name.
OF_A_SCENARIO = frozenset(
    ("rayio.scenario", *(f"rayio.scenario.{name}" for name in ("model", "derive", "evaluation", "checks", "load")))
)


def test_roles_and_engines_know_the_plan_and_one_file_makes_it_of_a_scenario() -> None:
    paths = [path for path in FILES if room(path) == "model" or path.is_relative_to(ROOT / "engines" / "ray")]
    found = [named(path) for path in paths if {*modules_in(path.read_text(encoding="utf-8"), OF_A_SCENARIO)}]
    assert found == ["model/planning.py"]


def imported_with(source: str, known: frozenset[str]) -> set[str]:
    """The known modules that are loaded when a module is: not those for types only, not those inside functions."""
    first = [one for one in parsed(source).body if isinstance(one, ast.Import | ast.ImportFrom)]
    return {*modules_in("\n".join(map(ast.unparse, first)), known)}


def test_an_actor_loads_no_schema_of_a_whole_scenario() -> None:
    """It gets values that were checked. What checks them costs each process a third of a second, and a run has many."""
    files = {module(path): path for path in FILES}
    known = frozenset(files)
    behind = {type(format).__module__ for format in FORMATS.values()} | {
        decode.__module__ for decode in DECODES.values()
    }
    left = {
        "rayio.engines.ray.actors.shells",
        "rayio.engines.ray.actors.servers",
        "rayio.engines.loaders.pytorch",
        "rayio.storage.stores.posix",
        *behind,
    }
    loaded: set[str] = set()
    while left:
        loaded.add(name := left.pop())
        found = imported_with(files[name].read_text(encoding="utf-8"), known)
        folders = {".".join(one.split(".")[:n]) for one in found for n in range(2, one.count(".") + 1)}
        left |= (found | folders) - loaded
    assert {"rayio.model.roles", "rayio.data.formats", "rayio.schema.fields"} <= loaded
    assert "rayio.scenario.model" not in loaded


#: A program that records spans, sends them, stores them and reads them back, and says whether it loaded pandas.
RECORDS = """
import sys, pathlib, numpy
from rayio.trace import arrow, progress, recorder, slice_file, span_files
recorder = recorder.Recorder()
recorder.add(recorder.register("rank", "0", 0), "compute", 1, 2)
table = arrow.from_ipc(arrow.to_ipc(recorder.drain()))
progress.Progress().add(table)
span_files.write(pathlib.Path(sys.argv[1]), table)
assert span_files.SpanFile(pathlib.Path(sys.argv[1])).read().equals(table)
aside = slice_file.SliceFile(table.column_names, 1)
aside.keep(table, numpy.zeros(1, numpy.uint16))
assert len(aside.table(0, table.column_names)) == len(table)
print("pandas" in sys.modules)
"""


def test_recording_and_storing_spans_loads_no_pandas(tmp_path: Path) -> None:
    """Arrow would load it in every actor, for half a second of a processor, to tell what it is given from a Series."""
    command = [sys.executable, "-c", RECORDS, str(tmp_path / "spans.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


#: A program that records spans and sends them, and prints how many threads that started.
SENDS = """
import os
from rayio.trace.arrow import from_ipc, to_ipc
from rayio.trace.recorder import Recorder
recorder = Recorder()
recorder.add(recorder.register("rank", "0", 0), "compute", 1, 2)
table = recorder.drain()
before = len(os.listdir("/proc/self/task"))
from_ipc(to_ipc(table))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's list of threads")
def test_a_message_of_spans_takes_no_threads() -> None:
    """For a few spans they take most of the processor time of a message, in every actor and in the collector."""
    assert subprocess.run([sys.executable, "-c", SENDS], capture_output=True, text=True, check=True).stdout == "0\n"


#: A program that collects spans, and says which modules that loaded.
COLLECTS = """
import sys
from rayio.engines.ray.actors.collector import Collector
from rayio.storage.stores.opening import DEFAULTS
from rayio.trace.arrow import to_ipc
from rayio.trace.clocks import Anchor
from rayio.trace.recorder import Recorder
from rayio.trace.run_directory import RunDirectory
RunDirectory.create(sys.argv[1])
recorder = Recorder()
recorder.add(recorder.register("rank", "0", 0), "compute", 1, 2)
message = to_ipc(recorder.drain())
collector = Collector(sys.argv[1], DEFAULTS, Anchor.new())
before = {*sys.modules}
collector.push("rank-0", message, 1)
collector.finish()
print(sorted({*sys.modules} - before))
"""


def test_a_collector_loads_modules_before_the_run_begins(tmp_path: Path) -> None:
    """The first spans come while roles work: a twentieth of a second of a processor of those that write checkpoints."""
    command = [sys.executable, "-c", COLLECTS, str(tmp_path / "run")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_imports_are_found_wherever_they_stand() -> None:
    source = "import rayio.data.layout, os\nfrom rayio import seeds\ndef f():\n    from rayio.cli.runs import run\n"
    assert [*rooms_in(source)] == ["data", "seeds", "cli"]


def test_every_room_is_known() -> None:
    found = {room(path) for path in FILES} - DOORS
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert found | folders == {*LEVEL}
    assert {*LEVEL} >= WITHIN


def test_no_file_is_longer_than_400_lines() -> None:
    assert not [named(path) for path in FILES if path.read_text(encoding="utf-8").count("\n") > 400]


@pytest.mark.parametrize("folder", sorted({path.parent for path in FILES}), ids=str)
def test_no_folder_holds_a_single_module(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.stem not in DOORS]
    assert len(modules) != 1, f"{folder} is a folder with one module"


def test_importing_rayio_imports_neither_ray_nor_torch() -> None:
    program = (
        "import sys, rayio; found = {'ray', 'torch', 'numpy', 'pydantic'} & {*sys.modules}; assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("library", "its_rooms"), [("ray", ("engines/ray",)), ("torch", ("engines/loaders", "engines/savers"))]
)
def test_only_its_rooms_mention_a_library_that_is_heavy(library: str, its_rooms: tuple[str, ...]) -> None:
    for path in FILES:
        names = {
            (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
            for node in nodes(path.read_text(encoding="utf-8"))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert library not in names or named(path).startswith(its_rooms), named(path)

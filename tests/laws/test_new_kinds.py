"""A kind that is added gets its laws by itself: a file and a line of the registry each, and nothing in the tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from packages import TOY

ROOT = Path(__file__).parents[2]


class Added(NamedTuple):
    """A kind that is added to a copy: made of one of the toy package's files, with or without a defect."""

    registry: str
    name: str
    source: str
    module: str
    kind: str
    #: What stands below the toy's, and the law that it does not pass.
    defect: str = ""
    breaks: str = ""


LONGER = """

class Longer(ToyFormat):
    def file_bytes(self, layout, files):
        return super().file_bytes(layout, files) + 1
"""
TORN = """

class Torn(ToyStore):
    def write(self, name, fill, *, traffic=None, fsync=False, doing="writing"):
        if traffic is not None:
            return super().write(name, fill, traffic=traffic, fsync=fsync, doing=doing)
        self.local(name).parent.mkdir(parents=True, exist_ok=True)
        with self.local(name).open("wb") as file:
            fill(file)
"""
BOASTFUL = """

class Boastful(ToyStore):
    def open(self, name, traffic):
        traffic.requests += 1
        return super().open(name, traffic)
"""
UNTRIED = """

class Untried(ToyStore):
    trial = None
"""
FORGETFUL = """

class Forgetful(PerNode):
    def sizes(self, num_bytes: int, topology: Topology) -> tuple[int, ...]:
        return shares(num_bytes - 1, topology.nodes)
"""
ADDED = (
    Added("FORMATS", "flat", "format.py", "rayio.data.formats.flat", "ToyFormat"),
    Added(
        "FORMATS", "longer", "format.py", "rayio.data.formats.longer", "Longer", LONGER,
        "test_what_is_written_is_read_in_any_order_with_the_planned_requests",
    ),
    Added("STORAGES", "shelf", "storage.py", "rayio.storage.stores.shelf", "ToyStore"),
    Added(
        "STORAGES", "torn", "storage.py", "rayio.storage.stores.torn", "Torn", TORN,
        "test_a_write_that_breaks_off_leaves_what_was_there",
    ),
    Added(
        "STORAGES", "boastful", "storage.py", "rayio.storage.stores.boastful", "Boastful", BOASTFUL,
        "test_what_is_counted_of_reads_is_what_the_system_was_asked",
    ),
    Added(
        "STORAGES", "untried", "storage.py", "rayio.storage.stores.untried", "Untried", UNTRIED,
        "test_what_is_written_is_read_listed_replaced_and_removed",
    ),
    Added("CHECKPOINTS", "first_ranks", "saving.py", "rayio.scenario.first_ranks", "PerNode"),
    Added(
        "CHECKPOINTS", "forgetful", "saving.py", "rayio.scenario.forgetful", "Forgetful", FORGETFUL,
        "test_the_state_is_cut_without_a_byte_lost_and_every_part_has_one_rank",
    ),
)  # fmt: skip


def with_added_kinds(copy: Path) -> None:
    """Make a copy of the package and of its tests: with a file for each kind that is added, and a line."""
    shutil.copytree(ROOT / "rayio", copy / "rayio")  # with what is compiled: times of files are copied, too
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=shutil.ignore_patterns("hostile", "runs"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    registry = copy / "rayio" / "kinds.py"
    for added in ADDED:
        text = (TOY / "rayio_toy" / added.source).read_text() + added.defect
        file = copy / f"{added.module.replace('.', '/')}.py"
        file.write_text(text.replace("toy://", f"{added.name}://").replace('"each_node"', f'"{added.name}"'))
        line = f'"{added.name}": "{added.module}:{added.kind}", '
        found, number = re.subn(rf"(?s)(\n{added.registry}: .*?{{)", rf"\g<1>{line}", registry.read_text(), count=1)
        assert number == 1
        registry.write_text(found)


def test_a_kind_in_a_copy_gets_its_laws_by_itself_and_a_defect_in_it_is_found(tmp_path: Path) -> None:
    with_added_kinds(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=line", "-p", "no:cacheprovider", "tests/laws",
         "--hypothesis-profile=brief", "-k", f"({' or '.join(added.name for added in ADDED)}) and not torch"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    results = re.findall(r"(?m)^(PASSED|FAILED|ERROR) \S+::(\w+)\[(.*?)\]", done.stdout)
    for added in ADDED:
        laws = [(how, law) for how, law, case in results if added.name in case.split("-")]
        assert len({*laws}) >= 2, f"hardly a law was tried on {added.name}\n{done.stdout}{done.stderr}"
        failed = {law for how, law in laws if how != "PASSED"}
        assert added.defect != UNTRIED or f"no law can be tried on {added.name}://: give what" in done.stdout
        assert added.breaks in failed if added.breaks else not failed, f"{added.name}: {failed}\n{done.stdout}"

"""A Dockerfile's steps, as they stand, in clean roots made by debootstrap: for machines without a container engine.

    python tests/dockerfile.py DOCKERFILE CONTEXT FOLDER

needs root. Knows what k8s/Dockerfile says (FROM of Debian, ARG, ENV, RUN, COPY, USER, WORKDIR), and stops at anything
else. This machine's settings for packages (apt, pip) are lent to each root; what is built is left in FOLDER.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

#: What says where packages come from, on this machine.
LENT = ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/apt/apt.conf.d",
        "/etc/apt/sources.list.d", "/etc/apt/auth.conf.d", "/usr/share/keyrings")  # fmt: skip


@dataclass
class Stage:
    """A root that is being built."""

    root: Path
    variables: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"})
    arguments: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"


def steps(text: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile.

    >>> steps("# why\\nRUN a \\\\\\n  b\\nUSER 1")
    [('RUN', 'a   b'), ('USER', '1')]
    """
    joined = re.sub(r"\\\n", " ", text)
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines)]


def bare(image: str, folder: Path) -> Path:
    """The root of an image of Debian, made once."""
    match = re.fullmatch(r"debian:(\w+)-slim", image)
    assert match is not None, f"not known here: FROM {image}"
    root = folder / match[1]
    if not root.exists():
        mirror = next(
            line.split()[1] for file in Path("/etc/apt/sources.list.d").glob("*.sources")
            for line in file.read_text().splitlines() if line.startswith("URIs:")
        )  # fmt: skip
        subprocess.run(["debootstrap", "--variant=minbase", match[1], str(root), mirror], check=True)
    return root


def lend(root: Path) -> None:
    """Give a root this machine's settings for packages."""
    for name in LENT:
        here, there = Path(name), root / name[1:]
        if here.is_dir():
            shutil.copytree(here, there, dirs_exist_ok=True)
        elif here.exists():
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, there)


def run(stage: Stage, command: str) -> None:
    """Run a command in a root, as its user, with its variables."""
    lend(stage.root)  # what was installed may have replaced some of it
    user, _, group = stage.user.partition(":")
    lent = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "http", "https", "no_proxy"))}
    subprocess.run(
        ["chroot", f"--userspec={user}:{group or user}", str(stage.root), "/usr/bin/env", "-i",
         *(f"{k}={v}" for k, v in {**lent, **stage.arguments, **stage.variables}.items()),
         "sh", "-c", f"cd {shlex.quote(stage.folder)} && {command}"],
        check=True,
    )  # fmt: skip


def copy(stage: Stage, said: str, context: Path, stages: dict[str, Stage]) -> None:
    """Copy files of the context, or of another stage."""
    words = shlex.split(said)
    above = context
    if words[0].startswith("--from="):
        above = stages[words.pop(0).removeprefix("--from=")].root
    *names, target = words
    place = stage.root / target.lstrip("/")
    for name in names:
        here = above / name.lstrip("/")
        if here.is_dir():
            shutil.copytree(
                here, place, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(here, place)


def build(dockerfile: Path, context: Path, folder: Path) -> Stage:
    """Build every stage; the last one is the image."""
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for number, (word, said) in enumerate(steps(dockerfile.read_text())):
        sys.stdout.write(f"--- {word} {said}\n")
        sys.stdout.flush()
        if word == "FROM":
            image, _, name = said.partition(" AS ")
            root = folder / f"stage-{number}"
            subprocess.run(["cp", "-a", str(bare(image, folder)), str(root)], check=True)
            stage = stages[name] = Stage(root)
            continue
        assert stage is not None
        match word:
            case "ARG":
                name, _, value = said.partition("=")
                stage.arguments[name] = value
            case "ENV":
                stage.variables |= dict(part.split("=", 1) for part in shlex.split(said))
            case "RUN":
                run(stage, said)
            case "COPY":
                copy(stage, said, context, stages)
            case "USER":
                stage.user = said
            case "WORKDIR":
                stage.folder = said
            case _:
                raise SystemExit(f"not known here: {word}")
    assert stage is not None
    return stage


if __name__ == "__main__":
    built = build(*map(Path, sys.argv[1:4]))
    sys.stdout.write(f"{built.root}\n")

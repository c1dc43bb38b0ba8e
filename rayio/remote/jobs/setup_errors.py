"""Failures of a job before its command began, as one line with the remedy: Ray gives whole logs of pip."""

from __future__ import annotations

import re

#: The longest cause that is shown.
MOST_CHARACTERS = 200

#: Texts of a log, and the remedy; the first one that is found counts.
_REMEDIES = (
    (
        ("Failed to install pip packages", "pip install", "No matching distribution", "virtualenv"),
        "Ray could not install rayio's dependencies on the cluster",
        "--pip needs a package index that its nodes reach; else use an image that has the dependencies "
        "(k8s/Dockerfile), without --pip",
    ),
    (
        ("working_dir", "runtime_env file package", "Local directory", "py_modules"),
        "the cluster could not unpack what was sent",
        "submit again; if it fails again, install rayio on the cluster and use --installed",
    ),
    (
        ("runtime_env", "runtime environment"),
        "the cluster could not set up the job",
        "install rayio on the cluster and use --installed",
    ),
)
#: Lines with a cause: of pip, then of Python.
_CAUSES = (
    re.compile(r"^ *(?:ERROR|error): *(.+)$", re.MULTILINE),
    re.compile(r"^ *(?:\w+\.)*\w*Error: *(.+)$", re.MULTILINE),
)


def why_not_set_up(message: str) -> str:
    r"""Return a line about a job that failed before its command began; empty without a message.

    >>> why_not_set_up("runtime_env setup failed:\n  Traceback ...\nOSError: No space left on device")
    'the cluster could not set up the job: No space left on device; install rayio on the cluster and use --installed'
    """
    for texts, problem, remedy in _REMEDIES:
        if any(text in message for text in texts):
            return f"{problem}: {_cause(message)}; {remedy}"
    return _short(message)


def _cause(message: str) -> str:
    for pattern in _CAUSES:
        if causes := pattern.findall(message):
            return _short(causes[-1])
    lines = [line for line in message.splitlines() if line.strip()]
    return _short(lines[0])


def _short(text: str) -> str:
    line = " ".join(text.split()).partition(". ")[0].rstrip(".")
    return line if len(line) <= MOST_CHARACTERS else f"{line[:MOST_CHARACTERS]}…"

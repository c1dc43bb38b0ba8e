"""Environment variables for tasks and actors that a library submits from within an actor of a run.

Ray starts another Python to set the environment of each worker (0.4 s of CPU). On rayio's actors, whose tasks inherit
it, every run would pay that before its first step. So the variables go to submitted work, and to what that submits.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import cache, wraps
from typing import Any

from ray.actor import ActorClass
from ray.remote_function import RemoteFunction
from ray.runtime_env import RuntimeEnv

try:
    from ray._private.utils import get_runtime_env_info
except ImportError:  # other versions of Ray
    get_runtime_env_info = None

#: Ray's argument with a task's environment as text.
_INFO = "serialized_runtime_env_info"
#: Keys that give a task another Python, where OpenTelemetry would fail to import rayio's provider.
OTHER_PYTHON = frozenset({"conda", "container", "image_uri", "py_executable"})


def tell(variables: Mapping[str, str]) -> None:
    """Set these environment variables for work submitted from now on; its own variables have priority.

    Unchanged are detached actors, which outlive the run, work with another Python, and all work in a Ray that submits
    in another way.
    """
    if get_runtime_env_info is None or _INFO not in inspect.signature(RemoteFunction._remote).parameters:
        return
    task, actor = RemoteFunction._remote, ActorClass._remote

    @cache
    def informed(info: str) -> str:
        return with_variables(info, variables)

    @wraps(task)
    def submit(self: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        if not rest:
            options[_INFO] = informed(options.get(_INFO) or "")
        return task(self, args, kwargs, *rest, **options)

    @wraps(actor)
    def create(self: Any, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        if options.get("lifetime") != "detached":
            options["runtime_env"] = _environment(options.get("runtime_env") or {}, variables)
        return actor(self, args, kwargs, **options)

    RemoteFunction._remote, ActorClass._remote = submit, create


def with_variables(info: str, variables: Mapping[str, str]) -> str:
    """Return a task's environment, as Ray's text (empty: none), with these variables unless it sets them."""
    known = json.loads(info) if info else {}
    runtime_env = _environment(json.loads(known.get("serializedRuntimeEnv") or "{}"), variables)
    ours: dict[str, Any] = json.loads(get_runtime_env_info(runtime_env, is_job_runtime_env=False, serialize=True))
    return json.dumps(ours | known | {"serializedRuntimeEnv": ours["serializedRuntimeEnv"]})


def _environment(given: Mapping[str, Any], variables: Mapping[str, str]) -> RuntimeEnv:
    if not OTHER_PYTHON.isdisjoint(given):
        return RuntimeEnv(_validate=False, **given)
    own = given.get("env_vars") or {}
    return RuntimeEnv(_validate=False, **{**given, "env_vars": {**variables, **own}})

"""Tasks and actors that a library submits from within an actor of ours are told of the run by their environment.

Ray starts another Python to set the environment of each worker (0.4 s of CPU): with an environment on our own actors,
which tasks inherit, every run would pay for that before its first step. So it is put on what is submitted. What that
submits inherits it.
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
except ImportError:  # another Ray
    get_runtime_env_info = None

#: How Ray hands a task's environment, as text, to the method that submits it.
_INFO = "serialized_runtime_env_info"
#: What gives a task another Python: OpenTelemetry there would look for our provider in vain, and raise an error.
OTHER_PYTHON = frozenset({"conda", "container", "image_uri", "py_executable"})


def tell(variables: Mapping[str, str]) -> None:
    """Have what this process submits from now on start with these environment variables, and its own where it has any.

    Detached actors stay as they are, for they outlive the run; so does what brings a Python of its own, and everything
    where Ray submits in another way.
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
    """A task's environment, as Ray writes it (empty: none), with these variables where it does not set its own."""
    known = json.loads(info) if info else {}
    runtime_env = _environment(json.loads(known.get("serializedRuntimeEnv") or "{}"), variables)
    ours: dict[str, Any] = json.loads(get_runtime_env_info(runtime_env, is_job_runtime_env=False, serialize=True))
    return json.dumps(ours | known | {"serializedRuntimeEnv": ours["serializedRuntimeEnv"]})


def _environment(given: Mapping[str, Any], variables: Mapping[str, str]) -> RuntimeEnv:
    if not OTHER_PYTHON.isdisjoint(given):
        return RuntimeEnv(_validate=False, **given)
    own = given.get("env_vars") or {}
    return RuntimeEnv(_validate=False, **{**given, "env_vars": {**variables, **own}})

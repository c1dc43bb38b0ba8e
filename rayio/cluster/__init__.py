"""The model on Ray: the same roles, each in an actor. The only room that imports ray."""

import os

# Ray's handler of failures takes SIGTERM for one, and gives it back to the system as Ray ends: a signal between that
# and the writing of results would lose them. Ray asks for this variable once, when it is loaded.
_NAME = "RAY_DISABLE_FAILURE_SIGNAL_HANDLER"
_IS_OURS = _NAME not in os.environ
if _IS_OURS:
    os.environ[_NAME] = "1"
import ray  # noqa: E402, F401

if _IS_OURS:
    del os.environ[_NAME]

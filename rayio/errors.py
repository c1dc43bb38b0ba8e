"""What can go wrong, in a user's words. Anything that is not one of these is our bug and keeps its traceback."""

from __future__ import annotations


class RayioError(Exception):
    """An error to show as one line: what happened, which value, what to do next.

    Instances carry nothing but their message, so they survive pickling between processes.
    """

    #: Exit code of the command that ends with this error.
    exit_code = 2
    #: What was tried before it came to this, until it is in the trace.
    retried: object = None


class ScenarioError(RayioError):
    """A scenario that cannot be: a key, a value, a unit, or values that contradict each other."""


class ContradictionError(ScenarioError):
    """Keys that are right one by one, and cannot be together."""


class DataError(RayioError):
    """A dataset that does not match, or a file in it that is truncated or corrupted."""


class StorageError(RayioError):
    """A storage system that refuses: no space, no permission, no such path."""


class QueryError(RayioError):
    """A query that is not one, or asks for more than reading spans."""


class ExportError(RayioError):
    """Spans that did not reach another tool: a collector that is not there or refuses, a file, a viewer."""


class ClusterError(RayioError):
    """A machine or cluster that cannot run this: not reachable, too small, other versions."""


class RunError(RayioError):
    """A run that could not go on: an actor that died and cannot be replaced."""


class ExpectationError(RayioError):
    """A run that ended well and whose numbers miss what the scenario expects."""

    exit_code = 3


class LedgerError(RayioError):
    """A run whose delivered samples are not the planned ones."""

    exit_code = 4

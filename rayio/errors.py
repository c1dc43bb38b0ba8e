"""Errors that users can cause. Any other exception is a bug of rayio and keeps its traceback."""

from __future__ import annotations

from collections.abc import Callable


class RayioError(Exception):
    """An error shown as one line: what is wrong, the value, what to do. It holds only its message, so it pickles."""

    #: Exit code of the command that ends with this error.
    exit_code = 2
    #: Retries before this error, until the trace has them.
    retried: object = None

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the line, without the way through rayio's code."""
        return [f"{type(self).__name__}: {self}"]


class ScenarioError(RayioError):
    """An invalid scenario: a key, a value, a unit, or values that contradict each other."""

    #: Problems that the message leaves out, a line each, in the order of the file.
    listed: tuple[str, ...] = ()

    @property
    def problems(self) -> tuple[str, ...]:
        """Every problem of the scenario, a line each, in the order of the file."""
        return self.listed or (str(self),)


class ContradictionError(ScenarioError):
    """Keys that are valid alone and contradict each other."""


class DataError(RayioError):
    """A dataset that does not match, or a file in it that is truncated or corrupted."""


class MissingError(DataError):
    """A file or object that is not there: its address with that, and what to do if it is a dataset's."""

    def __init__(self, problem: str, remedy: str = "generate the dataset again, or correct the path") -> None:
        super().__init__(problem, remedy)

    def __str__(self) -> str:
        """Return the line."""
        return "; ".join(self.args)

    def other(self, remedy: str) -> DataError:
        """Return the error with another remedy."""
        return DataError(f"{self.args[0]}; {remedy}")


class StorageError(RayioError):
    """An error of storage: no space, no permission, no such path."""


class QueryError(RayioError):
    """An invalid query, or one that does more than read spans."""


class ExportError(RayioError):
    """A failed export: a collector that is unreachable or refuses, a file, a viewer."""


class ClusterError(RayioError):
    """A machine or cluster that cannot run this: unreachable, too small, other versions."""


class RunError(RayioError):
    """A run that failed: an actor died and cannot be replaced."""


class ExpectationError(RayioError):
    """A finished run that misses what the scenario expects."""

    exit_code = 3


class LedgerError(RayioError):
    """A run that did not deliver every planned sample exactly once."""

    exit_code = 4


class OtherNumberError(ValueError):
    """An intact file with another number of samples; ``number`` is None if its format does not tell."""

    def __init__(self, content: str, number: int | None = None) -> None:
        super().__init__(content)
        self.number = number


def first_error(*calls: Callable[[], None]) -> BaseException | None:
    """Call every function, whatever the others raise; return the first error, or None."""
    errors: list[BaseException] = []
    for call in calls:
        try:
            call()
        except BaseException as error:
            errors.append(error)
    return errors[0] if errors else None

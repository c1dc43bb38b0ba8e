"""``loader.kind: torch``: each rank has a ``torch.utils.data.DataLoader`` with worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from rayio.errors import ScenarioError
from rayio.scenario.kind import Kind
from rayio.schema.distribution import Constant
from rayio.schema.fields import Flag, Section, choice

if TYPE_CHECKING:
    from rayio.model.env import Env, QueuePort
    from rayio.model.plan import Plan
    from rayio.model.plan_parts import LoaderSpec
    from rayio.model.wiring import RankPorts, Wiring
    from rayio.scenario.loader import Loader
    from rayio.scenario.model import Scenario

MISSING = "loader.kind=torch: PyTorch is not installed here; run pip install 'rayio[torch]', or use loader.kind=actors"


class TorchOptions(Section):
    """Options of ``loader.kind: torch``: arguments of DataLoader, by its names."""

    persistent_workers: Flag = Field(
        False, description="Whether worker processes stay from epoch to epoch, or are started anew for each."
    )
    multiprocessing_context: Annotated[
        Literal["forkserver", "spawn", "fork"], choice("forkserver", "spawn", "fork")
    ] = Field("forkserver", description="How worker processes are started.")
    reader: Annotated[Literal["rayio", "numpy"], choice("rayio", "numpy")] = Field(
        "rayio",
        description="rayio: workers read straight into a batch's memory. numpy: they read as users' scripts do, with "
        "numpy.load per sample and PyTorch's default collation (npz, samples of one size).",
    )


DEFAULTS = TorchOptions()


class TorchLoader(Kind):
    """PyTorch's DataLoader in each rank's process, over the same samples and files."""

    options = TorchOptions
    has_roles = False

    def contradictions(self, scenario: Scenario) -> Iterator[str]:
        """Yield messages about options that DataLoader does not support."""
        loader, cluster = scenario.loader, scenario.cluster
        if loader.assignment != "static":
            yield (
                f"loader.assignment={loader.assignment}: PyTorch deals batches to its workers in turn; use static, or "
                "loader.kind=actors"
            )
        if loader.worker != "process":
            yield f"loader.worker={loader.worker}: PyTorch's workers are processes; use process, or loader.kind=actors"
        if cluster.is_crossed and cluster.reader_pool is None:  # readers that scale are already refused
            yield (
                f"cluster.placement={cluster.placement}: PyTorch's workers run on their rank's node; use colocated, or "
                "loader.kind=actors"
            )
        if loader.decode_threads > 1:
            yield (
                f"loader.decode_threads={loader.decode_threads}: PyTorch's workers decode one sample after the other; "
                "use 1, or loader.kind=actors"
            )
        if loader.payload == "none":
            yield "loader.payload=none: PyTorch's workers send what they read; use auto, or loader.kind=actors"
        if _options(loader).reader == "numpy":
            yield from _unread_by_numpy(scenario)

    def idle(self, scenario: Scenario) -> Iterator[str]:
        """Yield notes about options without effect on DataLoader, or on this run."""
        loader, options = scenario.loader, _options(scenario.loader)
        if loader.max_bytes_in_flight != "auto":
            yield "loader.max_bytes_in_flight: PyTorch bounds batches, not bytes; num_workers × prefetch_factor count"
        if loader.io_depth != 1:
            yield f"loader.io_depth={loader.io_depth}: a PyTorch worker makes one request at a time"
        if loader.queue != "actor":
            yield f"loader.queue={loader.queue}: PyTorch's queue lives in its rank's process anyway"
        if loader.max_workers == 0:
            for key in ("persistent_workers", "multiprocessing_context"):
                if (value := getattr(options, key)) != getattr(DEFAULTS, key):
                    yield f"loader.{key}={str(value).lower()}: there are no workers with loader.num_workers=0"
        elif options.persistent_workers and scenario.train.epochs == 1:
            yield "loader.persistent_workers=true: changes nothing, there is one epoch"

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot run for real here.

        Raises:
            ScenarioError: PyTorch is missing or too old, or there are no files to read.
        """
        if plan.modelled:
            raise ScenarioError(
                f"loader.kind=torch: dataset.path={plan.training_phase.path} has no files for PyTorch's workers to "
                "read; give a folder, use loader.kind=actors, or rayio simulate"
            )
        if find_spec("torch") is None:
            raise ScenarioError(MISSING)

    def batches(self, wiring: Wiring, env: Env, rank: int, ports: RankPorts) -> QueuePort:
        """Return a rank's DataLoader, and another for its evaluations."""
        from rayio.engines.loaders.reading import Reading
        from rayio.model.kernel import WallKernel
        from rayio.model.phases import PhasedQueue
        from rayio.model.pinning import pin_thread

        try:
            from torch.accelerator import is_available as has_accelerator

            from rayio.engines.loaders.dataloader import DataLoaderQueue, Settings
        except ModuleNotFoundError:  # on a node of the cluster; the driver's PyTorch was checked
            raise ScenarioError(MISSING) from None
        plan, kernel = wiring.plan, wiring.kernel
        assert isinstance(kernel, WallKernel)
        loader, options = plan.loader, _options(plan.loader)
        reading = Reading(plan, rank, wiring.root, kernel.anchor, is_inline=loader.num_workers == 0)
        pins = loader.pin_bandwidth is not None and has_accelerator()
        settings = Settings(
            loader.num_workers, loader.prefetch_factor, options.persistent_workers, pins,
            loader.in_order, options.multiprocessing_context, options.reader,
        )  # fmt: skip

        def make(steps: tuple[int, ...], *, evaluating: bool) -> DataLoaderQueue:
            queue = None if reading.is_inline else wiring.queue_env(rank, evaluating=evaluating)
            name = f"{rank}-eval" if evaluating else str(rank)
            queue_end = DataLoaderQueue(
                reading, steps, settings, wiring.recorder, name, queue, alone=kernel.alone,
                starts=wiring.starts, pinning=None if pins else pin_thread(queue or env, rank, loader.pin_bandwidth),
            )  # fmt: skip
            wiring.closing.append(queue_end.close)
            wiring.watched.append(queue_end.standing)
            wiring.worked.append(queue_end.worked.values)
            return queue_end

        training = make(plan.steps_of(rank), evaluating=False)
        if plan.evaluation is None:
            return training
        evaluation = make(plan.evaluation_steps_of(rank), evaluating=True)
        return PhasedQueue(training, evaluation, len(plan.steps))


def _unread_by_numpy(scenario: Scenario) -> Iterator[str]:
    """Yield messages about data that ``numpy.load`` does not read, or the default collation does not stack."""
    dataset = scenario.dataset
    if dataset.format != "npz":
        yield (
            f"loader.reader=numpy: numpy.load reads npz, and dataset.format is {dataset.format}; use npz, or "
            "loader.reader=rayio"
        )
    evaluated = dataset.eval.sample_bytes if scenario.train.evaluate is not None else None
    for key, sizes in (("sample_bytes", dataset.sample_bytes), ("eval.sample_bytes", evaluated)):
        if sizes is not None and not isinstance(sizes, Constant):
            yield (
                f"loader.reader=numpy: PyTorch's default collation stacks samples of one size, and dataset.{key} is "
                f"drawn ({sizes.kind}); give one size, or use loader.reader=rayio"
            )


def _options(loader: Loader | LoaderSpec) -> TorchOptions:
    return loader.options if isinstance(loader.options, TorchOptions) else DEFAULTS

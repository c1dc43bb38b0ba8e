"""``loader.kind: actors``: rayio's readers and prefetch queues, each a role that an engine places."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from rayio.scenario.kind import Kind

if TYPE_CHECKING:
    from rayio.model.env import Env, QueuePort
    from rayio.model.held_back import Consuming
    from rayio.model.plan import Plan
    from rayio.model.wiring import RankPorts, Wiring


class ActorLoader(Kind):
    """Readers and a prefetch queue for each rank, as roles of the run."""

    has_roles = True
    #: True: its readers can scale.
    scales = True

    def check(self, plan: Plan) -> None:
        """Accept every plan."""

    def batches(self, wiring: Wiring, env: Env, rank: int, ports: RankPorts) -> QueuePort:
        """Return a rank's source of batches: its own reads, or a queue, or two if it evaluates."""
        from rayio.model.held_back import HeldBack
        from rayio.model.inline_queue import InlineQueue
        from rayio.model.phases import PhasedQueue
        from rayio.model.pinning import pin_thread

        plan = wiring.plan
        if plan.loader.num_workers == 0:
            wiring.connect(env, plan.node_of_rank(rank))
            return InlineQueue(env, wiring.loading, pin_thread(env, rank, plan.loader.pin_bandwidth))
        training = ports.queue(replace(plan.queue(rank), taken=wiring.taken.get(rank)), evaluating=False)
        if plan.loader.scaling is not None and env.barrier is not None:
            consumed, wait = cast("Consuming", training).consumed, plan.loader.scaling.wait
            env.barrier = HeldBack(env.barrier, consumed, plan.meetings, wait, env.kernel.now())
        if plan.evaluation is None:
            return training
        evaluation = ports.queue(plan.queue(rank, evaluating=True), evaluating=True)
        return PhasedQueue(training, evaluation, len(plan.steps))

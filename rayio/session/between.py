"""What a prediction lies between: the run is simulated with what varies of its costs at its least and at its most."""

from __future__ import annotations

from rayio.predict.replay import cut
from rayio.records.run_result import Between, RunResult
from rayio.scenario import derive
from rayio.scenario.model import Scenario
from rayio.session.conclude import in_memory


def between(scenario: Scenario, result: RunResult) -> Between | None:
    """Find what ``result``, the prediction of ``scenario``, lies between; None where its costs do not say.

    Of a long scenario the beginning is simulated: what counts is how many times as long it takes. Processor times and
    checkpoints vary, other times stay as they are: a run whose processors are idle, without checkpoints, has a narrow
    interval.

    Raises:
        RayioError: with other times the run breaks off.
    """
    costs = scenario.charges
    low, high = (costs.cpu.at_least, costs.cpu.at_most) if scenario.cluster.cores else (1.0, 1.0)
    size = derive.checkpoint_bytes(scenario)
    usual_save = costs.of_checkpoint(size)
    least, most = (usual_save, usual_save) if scenario.checkpoint is None else costs.checkpoint_ends(size)
    varied = [end for end in ((low, least), (high, most)) if end != (1.0, usual_save)]
    if result.au is None or result.exit_code not in (0, 3) or not (varied or costs.error):
        return None
    usual = result
    if changed := cut(scenario):
        scenario = scenario.model_copy(update={"train": scenario.train.model_copy(update=changed)})
        usual = in_memory(scenario.model_copy(update={"expect": {}}))
    if not usual.wall_seconds or not usual.au:
        return None
    ends = [
        usual,
        *(
            in_memory(scenario.model_copy(update={"costs": costs.at_end(factor, save), "expect": {}}))
            for factor, save in varied
        ),
    ]
    times = sorted((one.wall_seconds or 0.0) / usual.wall_seconds for one in ends)
    shares = sorted((one.au or 0.0) / usual.au for one in ends)
    off = 1 + costs.error
    return Between(
        time_low=times[0] / off,
        time_high=times[-1] * off,
        au_low=result.au * shares[0] / off,
        au_high=min(1.0, result.au * shares[-1] * off),
    )

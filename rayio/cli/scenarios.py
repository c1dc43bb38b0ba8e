"""The commands validate, show, scenarios and schema. They import neither ray nor torch."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson, Overrides, Source
from rayio.cli.grouped import TOOLS
from rayio.cli.output import print_json
from rayio.errors import RayioError, ScenarioError
from rayio.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: The most problems of a scenario that validate lists.
MOST_PROBLEMS = 20
#: Formats of derived numbers by suffix; others are counts.
_FORMATS = {"_bytes": format_bytes, "_seconds": format_seconds, "_demand": format_rate}


def validate(source: Source, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Check a scenario without running it.

    Example:  rayio validate my.yaml loader.num_workers=8
    """
    from rayio.scenario import apart, checks, derive
    from rayio.scenario.foreign import converted
    from rayio.scenario.load import load

    try:
        scenario = load(source, overrides or ())
    except ScenarioError as error:
        raise listed(error) from None
    foreign = converted(source, overrides or ())
    notes = [*(foreign.remarks() if foreign is not None else ()), *checks.idle(scenario)]
    notes += checks.unused_schemes(scenario)
    apart.refuse_files(scenario)
    apart.refuse_overlaps(scenario)
    if scenario.dataset.is_modelled:  # a run then needs all that a simulation needs
        checks.check_simulated(scenario)
    phases = derive.phases(scenario)
    dropped, capped = derive.dropped_samples(scenario), derive.capped_samples(scenario)
    if phases is not None:
        dropped = capped = 0
    if as_json:
        from rayio.records.answers import Validated

        fewest, most = _steps(scenario)
        print_json(
            Validated(
                source=source,
                name=scenario.name,
                ranks=derive.world_size(scenario),
                steps=fewest,
                most_steps=most,
                samples=derive.num_samples(scenario),
                dataset_bytes=derive.dataset_bytes(scenario),
                dropped_samples_per_epoch=dropped,
                capped_samples_per_epoch=capped,
                notes=tuple(notes),
                not_simulated=tuple(checks.not_simulated(scenario)),
            )
        )
        return
    fewest, most = _steps(scenario)
    steps = f"{most}" if fewest == most else f"{fewest} to {most}"
    left_out = [
        f"{number} samples per epoch {why}"
        for number, why in ((dropped, "dropped by drop_last"), (capped, "not visited because of train.steps"))
        if number
    ]
    done = f"{steps} steps, {derive.num_samples(scenario)} samples, {format_bytes(derive.dataset_bytes(scenario))}"
    if phases is not None:
        size = format_bytes(derive.checkpoint_bytes(scenario))
        done = f"{phases.writes} checkpoints written and {phases.reads} read, {size} each; nothing is trained"
    ranks = derive.world_size(scenario)
    print(f"{source}: ok: {ranks} rank{'' if ranks == 1 else 's'} × {done}" + "".join(f"; {text}" for text in left_out))
    for text in notes:
        print(f"note: {text}")
    for text in checks.not_simulated(scenario):
        print(f"note: rayio simulate cannot run this: {text}")


def listed(error: ScenarioError) -> ScenarioError | typer.Exit:
    """Print the problems of a scenario, a line each, if there are several; return how the command ends."""
    if len(error.problems) < 2:
        return error
    for line in error.problems[:MOST_PROBLEMS]:
        print(f"rayio: {' '.join(line.split())}", file=sys.stderr)
    if (more := len(error.problems) - MOST_PROBLEMS) > 0:
        print(f"rayio: … and {more} more", file=sys.stderr)
    return typer.Exit(error.exit_code)


def _steps(scenario: Scenario) -> tuple[int, int]:
    from rayio.scenario import derive

    each = derive.rank_steps_by_epoch(scenario)
    times = derive.epochs(scenario) if len(each) == 1 else 1
    return times * sum(fewest for fewest, _ in each), times * sum(most for _, most in each)


def show(source: Source, overrides: Overrides = None, as_json: AsJson = False) -> None:
    """Print every key and derived number of a scenario.

    The output is a scenario file, with derived numbers as comments.

    Example:  rayio show unet3d-h100 cluster.nodes=4
    """
    import yaml

    from rayio.kinds import COSTS, STORAGE_MODELS
    from rayio.records.derived import EACH_RANK
    from rayio.scenario.load import load
    from rayio.scenario.storage import UNKNOWN
    from rayio.scenario.write import to_yaml

    scenario = load(source, overrides or ())
    if as_json:
        derived = {name: value if math.isfinite(value) else None for name, value in _derived(scenario).items()}
        print_json({"scenario": yaml.safe_load(to_yaml(scenario)), "derived": derived})
        return
    print(to_yaml(scenario), end="")
    print("\n# derived")
    for name, value in _derived(scenario).items():
        write = next((form for suffix, form in _FORMATS.items() if name.endswith(suffix)), str)
        print(f"# {name}: {write(value)}{' each rank' if name in EACH_RANK else ''}")
    if (model := scenario.storage.model) == UNKNOWN:
        print(f"# storage.model {UNKNOWN}: not described; rayio simulate needs another model")
    elif isinstance(model, str):
        print(f"# storage.model {model}: {STORAGE_MODELS[model]}")
    if isinstance(scenario.costs, str):
        print(f"# costs {scenario.costs}: {COSTS[scenario.costs]}")


def _derived(scenario: Scenario) -> dict[str, float]:
    """Return the derived numbers, with requests per sample if the format's library is installed."""
    from rayio.data.asked import requests_per_sample
    from rayio.scenario import checks

    table = dict(checks.table(scenario))
    try:
        requests = round(requests_per_sample(scenario), 3)
        return {**table, "requests_per_sample": int(requests) if requests.is_integer() else requests}
    except RayioError:
        return table


def scenarios(as_json: AsJson = False) -> None:
    """List the packaged scenarios.

    Example:  rayio scenarios
    """
    from rayio.scenario.source import packaged

    names = packaged()
    if as_json:
        from rayio.records.answers import PackagedScenario, PackagedScenarios

        print_json(
            PackagedScenarios(
                scenarios=tuple(PackagedScenario(name=name, description=about) for name, about in names.items())
            )
        )
        return
    width = max(map(len, names))
    for name, description in names.items():
        print(f"{name:<{width}}  {description}")


#: Names of schemas; :data:`rayio.records.answers.SCHEMAS` has the same, but is slow to import.
DESCRIBED = (
    "scenario", "result", "explain", "compare", "run", "repeats", "sweep", "validate", "show", "scenarios", "generate",
    "calibrate", "import", "capacity", "advise", "datasize", "export", "status", "doctor", "top",
    "check-published", "query",
)  # fmt: skip


def schema(
    of: Annotated[
        str,
        typer.Argument(
            help=f"scenario, result (of result.json), or the command of a --json output: {', '.join(DESCRIBED[2:])}.",
            metavar="NAME",
            autocompletion=completion.among(*DESCRIBED),
        ),
    ] = "scenario",
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the schema of scenario or result as a page in Markdown.")
    ] = False,
) -> None:
    """Print the JSON Schema of scenarios or of --json output.

    Editors use the schema of scenarios.

    Example:  rayio schema > scenario.schema.json
    """
    from rayio.records.answers import answer_schema
    from rayio.scenario.write import json_schema

    if of not in DESCRIBED:
        raise typer.BadParameter(f"{of!r} is none of {', '.join(DESCRIBED)}")
    if markdown:
        from rayio.records import reference as results
        from rayio.scenario import reference as scenarios

        if of not in ("scenario", "result"):
            raise typer.BadParameter(f"--markdown applies to scenario and result, not {of}")
        print(scenarios.to_markdown(json_schema()) if of == "scenario" else results.to_markdown(), end="")
        return
    print_json(json_schema() if of == "scenario" else answer_schema(of))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=TOOLS)(validate)
    app.command(rich_help_panel=TOOLS)(show)
    app.command(rich_help_panel=TOOLS)(scenarios)
    app.command(rich_help_panel=TOOLS)(schema)

"""Commands that only look at scenarios: validate, show, scenarios, schema. They import neither ray nor torch."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli.arguments import Overrides, Source
from rayio.units import format_bytes, format_rate, format_seconds

if TYPE_CHECKING:
    from rayio.scenario.model import Scenario

#: How derived numbers are written for a reader; others are plain counts.
_FORMATS = {"_bytes": format_bytes, "_seconds": format_seconds, "_demand": format_rate}


def validate(source: Source, overrides: Overrides = None) -> None:
    """Check a scenario, without running it.

    Example:  rayio validate my.yaml loader.num_workers=8
    """
    from rayio.scenario import checks, derive
    from rayio.scenario.load import load

    scenario = load(source, overrides or ())
    dropped, capped = derive.dropped_samples(scenario), derive.capped_samples(scenario)
    left_out = [
        f"{number} samples per epoch {why}"
        for number, why in ((dropped, "dropped by drop_last"), (capped, "not visited because of train.steps"))
        if number
    ]
    print(
        f"{source}: ok: {derive.world_size(scenario)} ranks × {_steps(scenario)} steps, "
        f"{derive.num_samples(scenario)} samples, {format_bytes(derive.dataset_bytes(scenario))}"
        + "".join(f"; {text}" for text in left_out)
    )
    for text in checks.idle(scenario):
        print(f"note: {text}")
    for text in checks.not_simulated(scenario):
        print(f"note: rayio simulate cannot do this: {text}")


def _steps(scenario: Scenario) -> str:
    from rayio.scenario import derive

    fewest, most = (scenario.train.epochs * steps for steps in derive.rank_steps(scenario))
    return f"{most}" if fewest == most else f"{fewest} to {most}"


def show(source: Source, overrides: Overrides = None) -> None:
    """Print every key and derived number.

    The output is a scenario file: derived numbers are comments.

    Example:  rayio show unet3d-h100 cluster.nodes=4
    """
    from rayio.scenario import checks
    from rayio.scenario.load import load
    from rayio.scenario.write import to_yaml

    scenario = load(source, overrides or ())
    print(to_yaml(scenario), end="")
    print("\n# derived")
    for name, value in checks.table(scenario).items():
        write = next((form for suffix, form in _FORMATS.items() if name.endswith(suffix)), str)
        print(f"# {name}: {write(value)}")
    if isinstance(scenario.storage.model, str):
        from rayio.storage.presets import PRESETS

        print(f"# storage.model {scenario.storage.model}: {PRESETS[scenario.storage.model]}")


def scenarios() -> None:
    """List the packaged scenarios.

    Example:  rayio scenarios
    """
    from rayio.scenario.source import packaged

    names = packaged()
    width = max(map(len, names))
    for name, description in names.items():
        print(f"{name:<{width}}  {description}")


class Described(StrEnum):
    """What has a schema."""

    SCENARIO = "scenario"
    RESULT = "result"


def schema(
    of: Annotated[Described, typer.Argument(help="scenario, or result: what result.json holds.")] = Described.SCENARIO,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the schema as a page to read.")] = False,
) -> None:
    """Print the JSON Schema of scenarios, for editors, or of results.

    Example:  rayio schema > scenario.schema.json
    """
    from rayio.scenario.write import json_schema

    if markdown:
        from rayio.results import reference as results
        from rayio.scenario import reference as scenarios

        print(scenarios.to_markdown(json_schema()) if of is Described.SCENARIO else results.to_markdown(), end="")
        return
    if of is Described.RESULT:
        from rayio.results.run_result import result_schema

        print(json.dumps(result_schema(), indent=2, ensure_ascii=False))
        return
    print(json.dumps(json_schema(), indent=2))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    for command in (validate, show, scenarios, schema):
        app.command()(command)

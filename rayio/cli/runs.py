"""The commands run, simulate, generate and report."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import Address, AsJson, MaybeSource, Overrides, Root, RunPath, Source
from rayio.cli.export import Grpc, Otlp, collector
from rayio.cli.file_options import Force, check_replaced, local_file
from rayio.cli.fitting import columns, fit
from rayio.cli.grouped import LOOK, RUN
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal

if TYPE_CHECKING:
    from rayio.records.answers import Ran
    from rayio.session import Run

#: The most spans for which a run writes its report by default: reading them takes seconds and memory.
MOST_SPANS = 2_000_000

Out = Annotated[
    str | None,
    typer.Option(
        help="Run directory to make, relative to --root, or its address; must not exist.",
        show_default="runs/<name>-<time>",
        metavar="DIR",
    ),
]
TraceLevel = Annotated[
    str | None,
    typer.Option(
        "--trace",
        help="Short for trace.level: none, step, batch, sample or io.",
        show_default="the scenario's",
        autocompletion=completion.among("none", "step", "batch", "sample", "io"),
    ),
]
Repeat = Annotated[int, typer.Option(min=1, help="Number of runs, each with its own run directory (--out OUT-1, ...).")]
Page = Annotated[
    bool | None,
    typer.Option("--report/--no-report", help="Write report.html.", show_default="of up to 2,000,000 spans"),
]


def run(
    source: MaybeSource = None,
    overrides: Overrides = None,
    engine: Annotated[
        str,
        typer.Option(
            help="ray (actors) or local (this process, wall clock).", autocompletion=completion.among("ray", "local")
        ),
    ] = "ray",
    address: Address = None,
    out: Out = None,
    root: Root = None,
    trace: TraceLevel = None,
    repeat: Repeat = 1,
    otlp: Otlp = None,
    grpc: Grpc = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Steps to send with --otlp or --grpc during the run: all, or first, every:N.", show_default="all"
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Go on with a run that broke off, from its newest complete checkpoint. With SCENARIO it is started if "
            "there is none.",
            metavar="RUN",
            autocompletion=completion.runs,
        ),
    ] = None,
    report: Page = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario, print its results and write report.html.

    The dataset is generated first if it is missing.

    Example:  rayio run unet3d-small loader.num_workers=4 --out runs/four
    """
    from rayio import session
    from rayio.model.engine import engine_named

    if resume is not None:
        for option, value in (("--out", out), ("--otlp", otlp), ("--grpc", grpc), ("--trace", trace)):
            if value is not None:
                raise typer.BadParameter(f"{option} {value} does not go with --resume: the run has its own")
        if repeat != 1:
            raise typer.BadParameter(f"--repeat {repeat} does not go with --resume RUN, which is one run")
        if source is None and root is not None:
            raise typer.BadParameter(f"--root {root} does not go with --resume: the run has its own")
        if source is not None and re.match(r"[a-z_][\w.]*=", source):
            raise typer.BadParameter(f"{source} does not go with --resume RUN: the run has its own scenario")
        _check_engine(engine, address)
        with only_json(as_json):
            done = _resumed(resume, source, overrides, engine, address, root)
            page = _shown(done, report, as_json=as_json)
        _conclude([done], [page], as_json=as_json)
        return
    if source is None:
        raise typer.BadParameter("give a SCENARIO, or --resume RUN")
    _check_engine(engine, address)
    if select is not None and otlp is None and grpc is None:
        raise typer.BadParameter(f"--select {select} applies to a collector; give --otlp URL or --grpc HOST:PORT too")
    wanted = _traced(overrides, trace)
    places = [out] if repeat == 1 else _places(out, root, repeat)
    runs, pages = [], []
    with engine_named(engine).lasting() if repeat > 1 else nullcontext():
        for place in places:
            to = collector(otlp, grpc)
            with only_json(as_json):
                runs.append(
                    session.run(
                        source,
                        wanted,
                        engine=engine,
                        address=address,
                        out=place,
                        root=root,
                        reporter=Terminal(),
                        collector=to,
                        select=select or "all",
                    )
                )
                pages.append(_shown(runs[-1], report, as_json=as_json, end="\n\n" if repeat > 1 else "\n"))
    _conclude(runs, pages, as_json=as_json)


def _check_engine(engine: str, address: str | None) -> None:
    if address is not None and engine != "ray":
        raise typer.BadParameter(f"--address {address} goes with --engine ray; {engine} uses no cluster")
    if engine not in ("ray", "local"):
        raise typer.BadParameter(f"{engine!r} is not ray or local (for the virtual clock: rayio simulate)")


def _resumed(
    path: str, source: str | None, overrides: list[str] | None, engine: str, address: str | None, root: str | None
) -> Run:
    """Go on with a run, or start it if there is none and a scenario is given."""
    from rayio.session.resume import resume, start_or_resume

    terminal = Terminal()
    if source is None:
        return resume(path, address=address, reporter=terminal)
    return start_or_resume(path, source, overrides, engine=engine, address=address, root=root, reporter=terminal)


def _shown(done: Run, report: bool | None, *, as_json: bool, end: str = "\n") -> str | None:
    """Print the summary of a run unless JSON is wanted, and write its report; return the report's address."""
    if not as_json:
        print(fit(done.summary(), columns()), end=end, flush=True)
    return _page(done, report)


def _conclude(runs: Sequence[Run], pages: Sequence[str | None], *, as_json: bool) -> None:
    """Print the JSON of runs, or the spread of repeats, and judge each run."""
    if as_json or len(runs) > 1:  # what is imported for the answer of one run in words would take longer than the words
        _print_together(runs, pages, as_json=as_json)
    for done in runs:
        _judge(done)


def _print_together(runs: Sequence[Run], pages: Sequence[str | None], *, as_json: bool) -> None:
    from rayio.analyze.compare import repeats
    from rayio.records.answers import Repeats
    from rayio.report.text.comparison import repeats_text

    spreads = repeats([done.result for done in runs]) if len(runs) > 1 else []
    if as_json:
        records = [_ran(done, page) for done, page in zip(runs, pages, strict=True)]
        print_json(records[0] if len(runs) == 1 else Repeats(runs=tuple(records), metrics=tuple(spreads)))
    else:
        print(fit("\n".join(repeats_text(spreads)), columns()))


def _places(out: str | None, root: str | None, repeat: int) -> list[str | None]:
    from rayio import storage
    from rayio.storage.address import join

    if out is None:
        return [None] * repeat
    places = [f"{out.rstrip('/')}-{number}" for number in range(1, repeat + 1)]
    for place in places:
        if storage.open(join(root or ".", place)).exists:
            raise typer.BadParameter(f"--out {out} --repeat {repeat}: {place} exists; choose another --out")
    return [*places]


def simulate(
    source: Source,
    overrides: Overrides = None,
    out: Out = None,
    root: Root = None,
    trace: TraceLevel = None,
    repeat: Repeat = 1,
    report: Page = None,
    as_json: AsJson = False,
) -> None:
    """Run a scenario on the virtual clock with modelled storage.

    Hours of a run take seconds. The same roles run as on Ray. It writes report.html too. Repeats have other seeds:
    seed, seed + 1 and so on.

    Example:  rayio simulate unet3d-small cluster.nodes=16 cluster.ranks_per_node=8 dataset.num_files=2048
    """
    from rayio import session

    wanted = _traced(overrides, trace)
    places = [out] if repeat == 1 else _places(out, root, repeat)
    runs, pages = [], []
    with only_json(as_json):
        for scenario, place in zip(session.repeated(source, wanted, repeat, root), places, strict=True):
            runs.append(session.simulate(scenario, out=place, root=root, reporter=Terminal()))
            pages.append(_shown(runs[-1], report, as_json=as_json, end="\n\n" if repeat > 1 else "\n"))
    _conclude(runs, pages, as_json=as_json)


def generate(
    source: Source,
    overrides: Overrides = None,
    root: Root = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Files written in parallel.", show_default="one per CPU, up to 8")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Read every sample and check its checksum.")] = False,
    as_json: AsJson = False,
) -> None:
    """Generate, resume or verify a scenario's dataset.

    Example:  rayio generate unet3d-small --root /scratch
    """
    from rayio import session

    terminal = Terminal()
    with only_json(as_json):
        session.generate(source, overrides or (), root=root, threads=threads, verify=verify, reporter=terminal)
    if as_json:
        from rayio.records.answers import Generated

        print_json(Generated(datasets=tuple(terminal.datasets)))


def report(
    path: RunPath,
    html: Annotated[bool, typer.Option(help="Write report.html, with figures.")] = True,
    out: Annotated[
        str | None,
        typer.Option(
            help="File to write; replaces one that report wrote.", show_default="RUN/report.html", metavar="FILE"
        ),
    ] = None,
    force: Force = False,
    window: Annotated[
        str | None, typer.Option(help="Time since the start that the timeline shows in full: 12s..15s.")
    ] = None,
    simulate: Annotated[
        bool | None,
        typer.Option(help="Replay the run, to find what would help.", show_default="up to 1000 steps"),
    ] = None,
    mlperf: Annotated[
        Path | None,
        typer.Option(
            help="Also write summary.json with the fields of DLIO and MLPerf Storage.", metavar="DIR", parser=local_file
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print a finished run's results and write report.html.

    report.html is one file and opens without a network.

    Example:  rayio report runs/four
    """
    from rayio.report import build
    from rayio.report.page import MARK
    from rayio.session.result import Run

    for option, value in (("--out", out), ("--window", window)):
        if value is not None and not html:
            raise typer.BadParameter(f"{option} {value} applies to report.html; remove --no-html")
    try:
        chosen = build.stretch(window) if window is not None else None
    except ValueError as error:
        raise typer.BadParameter(f"--window {error}") from None
    if out is not None:
        check_replaced(out, MARK, "report", force=force)
    done = Run.open(path)

    def written() -> str | None:
        with only_json(as_json):
            return build.attempt(path, Terminal(), out, window=chosen, simulate=simulate, is_asked=True)

    is_first = chosen is not None or out is not None  # a refused option is the only line
    page = written() if is_first else None
    if not as_json and done.directory.result is not None:
        print(fit(done.summary(), columns()))
        if (why := done.result.error) is not None:
            print(f"\n  the run ended with exit code {done.exit_code}: {why}")
        sys.stdout.flush()
    if html and not is_first:
        page = written()
    _ = done.result  # raises for a run without one
    if mlperf is not None:
        from rayio.session.mlperf_summary import write_mlperf

        print(f"rayio: summary: {write_mlperf(done, mlperf)}", file=sys.stderr)
    if as_json:
        print_json(_ran(done, page))


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=RUN)(run)
    app.command(rich_help_panel=RUN)(simulate)
    app.command(rich_help_panel=RUN)(generate)
    app.command(rich_help_panel=LOOK)(report)


def _traced(overrides: list[str] | None, trace: str | None) -> list[str]:
    return [*(overrides or ()), *([f"trace.level={trace}"] if trace is not None else ())]


def _page(done: Run, wanted: bool | None) -> str | None:
    """Write the report of a run that just ended; return its address, None if it is not wanted or fails."""
    from rayio.report.build import attempt

    trace = done.result.trace
    if wanted is None and trace is not None and trace.stored > MOST_SPANS:
        Terminal().say(f"no report: reading {trace.stored:,} spans is slow; write it with rayio report {done.address}")
        return None
    return None if wanted is False else attempt(done.directory, Terminal())


def _ran(done: Run, page: str | None) -> Ran:
    from rayio.records.answers import Ran

    return Ran(directory=done.address, report=page, result=done.result)


def _judge(done: Run) -> None:
    if done.exit_code:
        print(f"rayio: {done.result.error}", file=sys.stderr)
        raise typer.Exit(done.exit_code)

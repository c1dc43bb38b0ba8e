"""The commands export, export sdk and view."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rayio.cli import completion
from rayio.cli.arguments import AsJson, RunPath
from rayio.cli.file_options import check_folder_of, local_file
from rayio.cli.grouped import LOOK
from rayio.cli.output import only_json, print_json
from rayio.cli.terminal import Terminal

if TYPE_CHECKING:
    from rayio.export.collectors.sending import Sender
    from rayio.export.exporting import Chosen
    from rayio.records.answers import ExportedFile, ExportedTo
    from rayio.trace.run_directory import RunDirectory

Otlp = Annotated[
    str | None,
    typer.Option(
        help="Send to a collector by HTTP, such as http://localhost:4318; no value: OTEL_EXPORTER_OTLP_ENDPOINT.",
        metavar="[URL]",
    ),
]
Grpc = Annotated[
    str | None, typer.Option(help="Send to a collector by gRPC, such as localhost:4317.", metavar="[HOST:PORT]")
]


def export(
    path: Annotated[str, typer.Argument(help="A run directory.", metavar="RUN", autocompletion=completion.exported)],
    otlp: Otlp = None,
    grpc: Grpc = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(help="Perfetto trace to write, such as trace.pftrace.gz.", metavar="FILE", parser=local_file),
    ] = None,
    otlp_json: Annotated[
        Path | None,
        typer.Option(help="OTLP JSON to write, a request per line.", metavar="FILE", parser=local_file),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(help="CSV to write, a span per line.", metavar="FILE", parser=local_file)
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Steps to export: all, or a list of first, last, slowest:N, every:N.",
            show_default="first,last,slowest:20,every:50 to a collector, all to files",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Export a run's spans to OTLP collectors, Perfetto or files.

    Example:  rayio export runs/four --otlp http://localhost:4318
    """
    from rayio.export import exporting
    from rayio.records.answers import Exported, ExportedFile
    from rayio.trace.run_directory import RunDirectory

    files = [
        (file, write, what)
        for file, write, what in (
            (perfetto, exporting.write_perfetto, "slices"),
            (otlp_json, exporting.write_json, "spans"),
            (csv, exporting.write_csv, "spans"),
        )
        if file is not None
    ]
    if not files and otlp is None and grpc is None:
        raise typer.BadParameter("no target; give --otlp URL, --grpc HOST:PORT, --perfetto, --otlp-json or --csv FILE")
    names = [file.absolute() for file, _, _ in files]
    if twice := [file for file, _, _ in files if names.count(file.absolute()) > 1]:
        raise typer.BadParameter(f"{twice[0]} is given twice; give each format its own file")
    for file, _, _ in files:  # check all before writing the first
        check_folder_of(file)
        exporting.check_target(file, force=force)
    directory = RunDirectory.open(path)
    terminal = Terminal()
    say: Callable[[str], None] = (lambda text: None) if as_json else print
    written: list[ExportedFile] = []
    took: list[ExportedTo] = []
    with only_json(as_json):
        terminal.live("export: reading spans")
        if files:
            chosen = exporting.Chosen.of(directory, select or "all", terminal)
            _warn([*chosen.warnings(), *(chosen.big_traces() if otlp_json is not None else ())])
            say(chosen.counts())
            for file, write, what in files:
                began = time.perf_counter()
                number = write(chosen, file, force=force)
                terminal.done()
                roots = len(chosen.spans) - number if write is exporting.write_json else 0
                extra = f", and {roots} roots added" if write is exporting.write_json else ""
                if write is exporting.write_perfetto:
                    extra = _not_drawn(len(chosen.table) - number)
                say(f"{file}: {number} {what} written{extra}{_pace(number, began)}")
                seconds = time.perf_counter() - began
                written.append(ExportedFile(path=str(file), spans=number, roots=roots, seconds=seconds))
        for url, by_grpc in ((otlp, False), (grpc, True)):
            if url is not None:
                took.append(_send(directory, path, url, select, terminal, say, by_grpc=by_grpc))
        result = directory.result
    if as_json:
        recorded = result.trace.recorded if result and result.trace else None
        print_json(Exported(recorded=recorded, stored=directory.stored, files=tuple(written), collectors=tuple(took)))


def _send(
    directory: RunDirectory,
    path: str,
    url: str,
    select: str | None,
    terminal: Terminal,
    say: Callable[[str], None],
    *,
    by_grpc: bool,
) -> ExportedTo:
    from rayio.errors import ExportError
    from rayio.export import exporting
    from rayio.export.collectors.transport import connect
    from rayio.export.select import DEFAULT
    from rayio.records.answers import ExportedTo

    sender = connect(url, grpc=by_grpc)
    chosen = exporting.Chosen.of(directory, select or DEFAULT, terminal)
    _warn([*chosen.warnings(), *chosen.big_traces()])
    began = time.perf_counter()
    try:
        sent = exporting.send(chosen, sender)
    finally:
        sender.close()
        terminal.done()
    say(chosen.counts())
    if sent.is_whole:
        traces = len(chosen.spans.trace_sizes)
        say(
            f"{sent.spans} spans exported to {sender.target}, and {sent.added} roots added: "
            f"{traces} traces, {sent.requests} requests{_pace(sent.spans, began)}"
        )
        return ExportedTo(
            target=sender.target, spans=sent.spans, roots=sent.added, traces=traces, requests=sent.requests,
            seconds=time.perf_counter() - began,
        )  # fmt: skip
    again = exporting.export_again(path, sender, select)
    raise ExportError(f"{sent.complaint(sender.target)}; the run still has all spans: {again}")


def sdk(
    path: RunPath,
    exporter: Annotated[
        str | None,
        typer.Option(
            help="Name of an installed exporter, such as console or zipkin_json.",
            metavar="NAME",
            show_default="OTEL_TRACES_EXPORTER",
            autocompletion=completion.exporters,
        ),
    ] = None,
    select: Annotated[
        str | None, typer.Option(help="Steps to export, see rayio export.", show_default="as to a collector")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export a run's spans with any OpenTelemetry exporter.

    Settings of exporters are their environment variables. Standard output is the exporter's.

    Example:  rayio export sdk --exporter console runs/four
    """
    from rayio.export import exporting
    from rayio.export.collectors.installed import names_of
    from rayio.export.select import DEFAULT
    from rayio.records.answers import Exported
    from rayio.trace.run_directory import RunDirectory

    names = names_of(exporter)
    directory = RunDirectory.open(path)
    terminal = Terminal()
    with only_json(as_json):
        terminal.live("export: reading spans")
        chosen = exporting.Chosen.of(directory, select or DEFAULT, terminal)
        _warn([*chosen.warnings(), *chosen.big_traces()])
        again = f"rayio export sdk {{}} {shlex.quote(path)}{f' --select {shlex.quote(select)}' if select else ''}"
        took = tuple(_hand_over(chosen, name, again, terminal) for name in names)
    if as_json:
        print_json(Exported(recorded=chosen.recorded, stored=directory.stored, files=(), collectors=took))


def _hand_over(chosen: Chosen, name: str, again: str, terminal: Terminal) -> ExportedTo:
    """Export the selected spans with one exporter.

    Raises:
        ExportError: it cannot be made, or does not take all spans.
    """
    from rayio.errors import ExportError
    from rayio.export import sdk_spans
    from rayio.export.collectors.installed import make, whose
    from rayio.records.answers import ExportedTo

    target, began = whose(name), time.perf_counter()
    sent = sdk_spans.send(chosen, make(name))
    terminal.done()
    if not sent.is_whole:
        raise ExportError(
            f"{sent.complaint(target)}; the run still has all spans: {again.format(f'--exporter {shlex.quote(name)}')}"
        )
    if sent.why:
        _warn([f"exporter {target}: {sent.why}"])
    traces = len(chosen.spans.trace_sizes)
    terminal.say(chosen.counts())
    terminal.say(
        f"{sent.spans} spans exported to {target}, and {sent.added} roots added: {traces} traces, "
        f"{sent.requests} batches{_pace(sent.spans, began)}"
    )
    return ExportedTo(
        target=target, spans=sent.spans, roots=sent.added, traces=traces, requests=sent.requests,
        seconds=time.perf_counter() - began,
    )  # fmt: skip


def collector(otlp: str | None, grpc: str | None) -> Sender | None:
    """Return the sender to the collector of a live export; None without one."""
    if otlp is not None and grpc is not None:
        raise typer.BadParameter("--otlp and --grpc exclude each other for a run; give one")
    if otlp is None and grpc is None:
        return None
    from rayio.export.collectors.transport import connect
    from rayio.export.live_export import FINISH_SECONDS

    return connect(otlp or grpc or "", grpc=grpc is not None, longest_seconds=FINISH_SECONDS)


def view(
    path: RunPath,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 0,
    select: Annotated[str, typer.Option(help="Steps to show, see rayio export.")] = "all",
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
) -> None:
    """Show a run in Perfetto's UI, served on this machine only.

    Example:  rayio view runs/four
    """
    import tempfile
    import webbrowser

    from rayio.export import exporting, viewer
    from rayio.trace.run_directory import RunDirectory

    viewer.pages()
    chosen = exporting.Chosen.of(RunDirectory.open(path), select)
    _warn(chosen.warnings())
    with tempfile.TemporaryDirectory(prefix="rayio-view-") as folder:
        trace = Path(folder) / "rayio.pftrace.gz"
        number = exporting.write_perfetto(chosen, trace)
        serving, address = viewer.server(trace, port)
        print(f"{number} slices{_not_drawn(len(chosen.table) - number)} at {address}  (Ctrl-C ends)", flush=True)
        if browser:
            webbrowser.open(address)
        try:
            serving.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            serving.server_close()


def _warn(texts: Iterable[str]) -> None:
    for text in texts:
        print(f"rayio: {text}", file=sys.stderr)


def _not_drawn(number: int) -> str:
    from rayio.export.exporting import NOT_DRAWN

    return f", {number} spans not drawn ({NOT_DRAWN})" if number else ""


def _pace(number: int, began: float) -> str:
    seconds = max(time.perf_counter() - began, 1e-9)
    return f" in {seconds:.2f} s ({number / seconds:,.0f} per second)"


def add_to(app: typer.Typer) -> None:
    """Register these commands."""
    app.command(rich_help_panel=LOOK)(export)
    app.command("export sdk", rich_help_panel=LOOK)(sdk)
    app.command(rich_help_panel=LOOK)(view)

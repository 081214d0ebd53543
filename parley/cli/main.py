"""The command `parley`.

Everything heavy is imported inside the commands, so that help and mistakes are answered at once.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import click
import typer

from parley.cli import (
    advise,
    attack,
    bench,
    catalogue,
    compare,
    conformance,
    data,
    deploy,
    doctor,
    gain,
    new,
    node,
    pareto,
    report,
    run,
    runs,
    stats,
    studies,
    trained,
    tune,
    ui,
    watch,
)
from parley.cli.examples import show_examples
from parley.core.checks import shown
from parley.core.errors import InputError, ParleyError, ParleyWarning, own_line, raised_here
from parley.core.processes import interruptible
from parley.core.text import printable

app = typer.Typer(
    name="parley",
    help="Federated learning among clients that disagree.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from parley import __version__

        print(f"parley {__version__}")
        raise typer.Exit


@app.callback()
def parley(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("demo")(studies.demo)
app.command("run")(run.run)
app.command("compare")(compare.compare)
app.command("report")(report.report)
app.command("tune")(tune.tune)
app.command("watch")(watch.watch)
app.command("ui")(ui.ui)
app.add_typer(runs.app, name="runs")
app.command("export")(trained.export)
app.command("predict")(trained.predict)
app.add_typer(data.app, name="data")
app.command("list")(catalogue.show)
app.command("stats")(stats.stats)
app.command("pareto")(pareto.pareto)
app.command("gain")(gain.gain)
app.command("advise")(advise.advise)
app.command("attack")(attack.attack)
app.command("reproduce")(studies.reproduce)
app.command("conformance")(conformance.conformance)
app.command("bench")(bench.bench)
app.add_typer(deploy.app, name="deploy")
app.add_typer(node.app, name="node")
app.add_typer(new.app, name="new")
app.command("doctor")(doctor.doctor)
show_examples(app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input is one sentence and exit code 2, an interrupt is 128 and the signal's number."""
    with interruptible() as interruption:
        try:
            if any("\0" in argument for argument in arguments or ()):
                raise InputError("an argument contains the character NUL.")
            with _warnings():
                code = app(args=arguments, prog_name="parley", standalone_mode=False)
            if code == 130:  # Typer has swallowed the interrupt
                raise KeyboardInterrupt
        except ParleyError as error:
            code = _say(str(error), 2)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            code = 2
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx is not None else "parley"
            code = _say(f"{_once(error.format_message())} See '{command} --help'.", 2)
        except click.ClickException as error:
            code = _say(error.format_message(), error.exit_code)
        except run.Interrupted as interrupt:
            code = _say(str(interrupt), interruption.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = _say("interrupted.", interruption.exit_code)
        except SystemExit as end:
            if raised_here(end):
                raise
            if isinstance(end.__context__, BrokenPipeError):  # Typer or Rich: whoever reads the output has seen enough
                code = 0
            else:
                code = _say(f"the program was ended by sys.exit({end.code!r}){own_line(end)}, not by parley.", 2)
        except OSError as error:
            place = "" if error.filename is None else f"{shown(str(error.filename))}: "
            code = _say(f"{place}{error.strerror or error}.", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _once(message: str) -> str:
    """A mistake in one sentence and one suggestion, which Typer and click both add."""
    said, *_ = re.split(r" \(?Did you mean ", message)
    suggestion = re.search(r"Did you mean [^?]*\?", message)
    return f"{said.rstrip('.')}." + (f" {suggestion[0]}" if suggestion else "")


def _say(sentence: str, code: int) -> int:
    print(f"parley: {printable(' '.join(sentence.split()))}", file=sys.stderr)
    return code


@contextmanager
def _warnings() -> Iterator[None]:
    """Our own warnings are one line for the user; those of other packages look as they always do."""
    with warnings.catch_warnings():
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, ParleyWarning):
                _say(f"warning: {message}", 0)
            else:
                others(message, category, *rest, **more)

        warnings.showwarning = show
        yield

"""The command `parley`.

A command's module is imported when the command is called, and what is heavy inside the commands, so that help and
mistakes are answered at once.
"""

from __future__ import annotations

import gc
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any

import click
import typer

from parley.cli.examples import show_examples
from parley.core.checks import shown
from parley.core.errors import InputError, ParleyError, ParleyWarning, raised_here, user_line
from parley.core.processes import Interrupted, interruptible
from parley.core.text import printable

COMMANDS = {
    "demo": "parley.cli.demo:demo",
    "run": "parley.cli.run:run",
    "compare": "parley.cli.compare:compare",
    "report": "parley.cli.report:report",
    "tune": "parley.cli.tune:tune",
    "watch": "parley.cli.watch:watch",
    "ui": "parley.cli.ui:ui",
    "runs": "parley.cli.runs:app",
    "export": "parley.cli.trained:export",
    "predict": "parley.cli.trained:predict",
    "data": "parley.cli.data:app",
    "list": "parley.cli.catalogue:show",
    "stats": "parley.cli.stats:stats",
    "analyse": "parley.cli.analyse:analyse",
    "pareto": "parley.cli.pareto:pareto",
    "gain": "parley.cli.gain:gain",
    "advise": "parley.cli.advise:advise",
    "attack": "parley.cli.attack:attack",
    "conformance": "parley.cli.conformance:conformance",
    "deploy": "parley.cli.deploy:app",
    "node": "parley.cli.node:app",
    "new": "parley.cli.new:app",
    "doctor": "parley.cli.doctor:doctor",
}
"""Command -> the function that runs it, or the group of its subcommands; other packages add theirs by entry points in
the group `parley.commands`."""


def application(command: str | None = None) -> typer.Typer:
    """The command line: with that command alone if there is one of this name, else with all of them."""
    app = typer.Typer(
        name="parley",
        help="Federated learning among clients that disagree.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(parley)
    chosen = {name: home for name, home in COMMANDS.items() if name == command}
    for name, home in (chosen or COMMANDS).items():
        module, _, attribute = home.partition(":")
        target = getattr(import_module(module), attribute)
        if isinstance(target, typer.Typer):
            app.add_typer(target, name=name)
        else:
            app.command(name)(target)
    if not chosen:
        for point in sorted(entry_points(group="parley.commands"), key=lambda point: point.name):
            app.command(point.name)(point.load())
    show_examples(app)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        from parley import __version__

        print(f"parley {__version__}")
        raise typer.Exit


def parley(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run a command; bad input is one sentence and exit code 2, an interrupt is 128 and the signal's number."""
    words = sys.argv[1:] if arguments is None else arguments
    gc.set_threshold(
        20_000, 10, 10
    )  # loading makes a million objects that stay: not worth looking for garbage so often
    with interruptible() as interruption:
        try:
            if any("\0" in word for word in words):
                raise InputError("an argument contains the character NUL.")
            with _warnings():
                app = application(words[0] if words else None)
                code = app(args=words, prog_name="parley", standalone_mode=False)
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
        except Interrupted as interrupt:
            code = _say(str(interrupt), interruption.exit_code)
        except (click.Abort, KeyboardInterrupt):
            code = _say("interrupted.", interruption.exit_code)
        except SystemExit as end:
            if raised_here(end):
                raise
            if isinstance(end.__context__, BrokenPipeError):  # Typer or Rich: whoever reads the output has seen enough
                code = 0
            else:
                code = _say(f"the program was ended by sys.exit({end.code!r}){user_line(end)}, not by parley.", 2)
        except OSError as error:
            file = "" if error.filename is None else f"{shown(str(error.filename))}: "
            code = _say(f"{file}{error.strerror or error}.", 2)
    sys.exit(code if isinstance(code, int) else 0)


def _once(message: str) -> str:
    """A mistake in one sentence and one suggestion, which Typer and click both add."""
    sentence, *_ = re.split(r" \(?Did you mean ", message)
    suggestion = re.search(r"Did you mean [^?]*\?", message)
    return f"{sentence.rstrip('.')}." + (f" {suggestion[0]}" if suggestion else "")


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

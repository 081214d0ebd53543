"""Studies on the terminal: the list of them, and a result with its checks."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley.studies.harness import Check, Result, studies


def catalogue() -> Table:
    """Every study with one line about it and the scales it offers."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("study", "what it shows", "scales"):
        drawn.add_column(heading)
    for name in studies:
        entry = studies[name]
        drawn.add_row(Text(name, style="bold"), Text(entry.about), Text(" ".join(entry.scales), style="dim"))
    return drawn


def checks_table(result: Result) -> RenderableType:
    """The checks with measured and expected values, then one line of verdict and where the files are."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{result.study} ({result.scale})", title_justify="left")
    drawn.add_column("", width=1)
    drawn.add_column("check")
    drawn.add_column("measured", justify="right", no_wrap=True)
    drawn.add_column("expected")
    for check in result.checks:
        mark = Text("✓", style="green") if check.passed else Text("✗", style="bold red")
        style = "" if check.passed else "bold red"
        drawn.add_row(mark, Text(check.name, style=style), Text(_value(check.measured), style=style), _expected(check))
    return Group(drawn, verdict(result), *[Text(f"  {file}", style="dim") for file in result.files])


def verdict(result: Result) -> Text:
    """How many checks passed, in words."""
    failed = [check.name for check in result.checks if not check.passed]
    count, seconds = len(result.checks), f"{result.seconds:.1f} s"
    if not failed:
        return Text(f"all {count} checks passed in {seconds}" if count > 1 else f"passed in {seconds}", style="green")
    return Text(f"{len(failed)} of {count} checks FAILED in {seconds}: {', '.join(failed)}", style="bold red")


def _expected(check: Check) -> Text:
    relation, _, rest = check.relation.partition(" ")
    return Text(" ".join(part for part in (relation, _value(check.expected), rest) if part))


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"

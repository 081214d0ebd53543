"""Studies on the terminal: the list of them, and a result with its checks."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from parley_papers.harness import Check, StudyResult, studies
from parley_papers.versions import titled

MARKS = {
    True: (Text("✓", style="green"), ""),
    False: (Text("✗", style="bold red"), "bold red"),
    None: (Text("–", style="dim"), "dim"),
}
"""A check's mark and the style of its line: passed, failed, not checked at this scale."""


def catalogue() -> Table:
    """Every study with one line about it and the scales it offers."""
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("study", "what it shows", "scales"):
        drawn.add_column(heading)
    for name in studies:
        entry = studies[name]
        drawn.add_row(Text(titled(name), style="bold"), Text(entry.about), Text(" ".join(entry.scales), style="dim"))
    return drawn


def checks_table(result: StudyResult) -> RenderableType:
    """The checks with measured and expected values, then one line of verdict and where the files are."""
    title = f"{titled(result.study)} ({result.scale})"
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    drawn.add_column("", width=1)
    drawn.add_column("check")
    drawn.add_column("measured", justify="right", no_wrap=True)
    drawn.add_column("expected")
    for check in result.checks:
        mark, style = MARKS[check.passed]
        drawn.add_row(mark, Text(check.name, style=style), Text(_value(check.measured), style=style), _expected(check))
    kept = f"{result.kept} of {result.trials} trials were kept ones and not trained again"
    return Group(
        drawn,
        verdict(result),
        *([Text(kept)] if result.kept else []),
        *[Text(f"  {file}", style="dim") for file in result.files],
    )


def verdict(result: StudyResult) -> Text:
    """How many checks passed, failed and were not made, in words."""
    made = [check for check in result.checks if check.passed is not None]
    failed = [check.name for check in made if not check.passed]
    skipped, seconds = len(result.checks) - len(made), f"{result.seconds:.1f} s"
    left = f"; {skipped} not checked at this scale" if skipped else ""
    if failed:
        text = f"{len(failed)} of {len(made)} checks FAILED in {seconds}: {', '.join(failed)}{left}"
        return Text(text, style="bold red")
    text = f"all {len(made)} checks passed" if len(made) > 1 else "1 check passed" if left else "passed"
    return Text(f"{text} in {seconds}{left}", style="yellow" if left else "green")


def _expected(check: Check) -> Text:
    relation, _, rest = check.relation.partition(" ")
    return Text(" ".join(part for part in (relation, _value(check.expected), rest) if part))


def _value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"

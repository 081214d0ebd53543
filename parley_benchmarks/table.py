"""A result for people: one table of contestants, one of claims."""

from rich.console import Group, RenderableType
from rich.table import Table

from parley_benchmarks.result import BenchResult, Claim, Standing


def table(result: BenchResult) -> RenderableType:
    """Both tables, ready for `rich.print`."""
    return Group(contestants_table(result), claims_table(result))


def contestants_table(result: BenchResult) -> Table:
    """Wall and processor time a round, memory and distance of the parameters; quickest contestant first."""
    cores = f"{result.cores} core{'s' if result.cores > 1 else ''}"
    drawn = Table(title=f"{result.workload} on {cores}: {result.about}")
    drawn.add_column("contestant")
    for heading in ("ms a round", "fastest", "slowest", "CPU ms", "set-up s", "peak GB", "difference"):
        drawn.add_column(heading, justify="right")
    for standing in sorted(result.standings, key=lambda s: s.median):
        times = [f"{1e3 * s:.2f}" for s in (standing.median, standing.fastest, standing.slowest, standing.cpu)]
        memory = [f"{standing.setup_seconds:.1f}", f"{standing.peak_gb:.2f}"]
        drawn.add_row(standing.name, *times, *memory, _difference(standing))
    return drawn


def claims_table(result: BenchResult) -> Table:
    """One row per claim: the figure, its spread over the chunks and the verdict."""
    drawn = Table()
    drawn.add_column("claim")
    drawn.add_column("measured", justify="right")
    drawn.add_column("spread", justify="right")
    drawn.add_column("verdict")
    for check in result.checks:
        measured = "-" if check.value is None else f"{check.value:.3g}"
        drawn.add_row(check.claim, measured, _spread(check), _verdict(check))
    return drawn


def _difference(standing: Standing) -> str:
    known = standing.final_difference if standing.final_difference is not None else standing.early_difference
    return "-" if known is None else f"{known:.1e}"


def _spread(check: Claim) -> str:
    return "" if check.low is None or check.high is None else f"{check.low:.3g} .. {check.high:.3g}"


def _verdict(check: Claim) -> str:
    if check.passed is None:
        return "[dim]not judged"
    return "[green]pass" if check.passed else "[red]FAIL"

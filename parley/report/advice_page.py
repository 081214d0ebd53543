"""Advice as one HTML page that needs no network: what was measured, what to do and why, who gains, what is unknown."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING

from parley.advise.plan.advice import Advice
from parley.core.files import write_atomically
from parley.report.gains_figure import gain_figure
from parley.report.page import document
from parley.report.page.markup import code, folded, section, table, text
from parley.report.style import PALETTE, clean, legend, new_figure, panel, y_label
from parley.study.toml import to_toml

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CURVES = 5
_ABOUT = (
    "The advised setting stands first. The best were forecast several times, with steeper curvatures, with clients "
    "that pull apart harder and with other draws: the table shows the mean loss at the end, the picture one of these "
    "forecasts. Of what is as good within 3% the simplest is advised; servers marked (bold) are left for a pilot."
)


def write_advice(advice: Advice, path: Path | str, *, names: bool = False) -> Path:
    """Write the page to `path`; `names` shows the clients' names."""
    write_atomically(Path(path), advice_page(advice, names=names).encode())
    return Path(path)


def advice_page(advice: Advice, *, names: bool = False) -> str:
    """The whole page."""
    title = f"Advice on {advice.study.title} for {advice.budget()}"
    parts = [_decisions(advice), _forecast(advice), _pilot(advice), _measured(advice), _gains(advice, names)]
    parts += [_unknown(advice), _study(advice)]
    return document(title, "What to do with this federation, and why.", parts)


def _decisions(advice: Advice) -> str:
    rows = [
        (recommendation.what, recommendation.value, recommendation.reason, recommendation.formula or None)
        for recommendation in advice.recommendations
    ]
    return section(
        "advice",
        "What to do",
        table(("what", "advised", "why", "formula"), rows, caption="Recommendations", stacked=True),
    )


def forecast_figure(advice: Advice) -> Figure:
    """The excess training loss of the advised setting and the next best ones, round by round."""
    from matplotlib.ticker import MaxNLocator

    result = new_figure(9, 4.2)
    axes = result.subplots()
    for rank, ranked in enumerate(advice.ranked[:_CURVES]):
        style = {"linewidth": 2.6} if rank == 0 else {"linewidth": 1.6, "linestyle": (0, (5, 1.5))}
        axes.plot(ranked.curve, color=PALETTE[rank], label=str(ranked.candidate), **style)
    if advice.goal.excess is not None:
        axes.axhline(advice.goal.excess, color="#4d4d4d", linewidth=1, linestyle=(0, (4, 3)), label="target")
    axes.set_yscale("log")
    top = float(advice.ranked[0].curve[0])
    lowest = min(float(ranked.curve.min()) for ranked in advice.ranked[:_CURVES])
    axes.set_ylim(max(lowest, 1e-9 * top) / 2, 3 * top)
    panel(axes, "", "round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    y_label(axes, "training loss above its minimum, forecast")
    clean(axes, "both")
    legend(axes, loc="best", size=9)
    return result


def _forecast(advice: Advice) -> str:
    if not advice.ranked:
        return ""
    words = (
        "The training loss above its minimum, forecast round by round for the advised setting and the next best ones."
    )
    aimed = advice.goal.excess is not None
    rows = []
    for ranked in advice.ranked:
        rounds = f"{ranked.rounds:.0f}" if ranked.rounds < float("inf") else None
        left = ranked.curve[-1] if aimed else ranked.score
        name = f"{ranked.candidate!s}{' (bold)' * ranked.bold}"
        rows.append((name, *((rounds,) if aimed else ()), f"{left:.3g}", f"{ranked.bytes_each:,}"))
    heads = (
        "setting",
        *(("rounds to the target",) if aimed else ()),
        "excess loss at the end",
        "bytes of a client's round",
    )
    numbers = table(heads, rows, caption="Forecasts", numeric=range(1, len(heads)), stacked=True)
    return section("forecast", "What is expected", _image(forecast_figure(advice), words), numbers, about=_ABOUT)


def _pilot(advice: Advice) -> str:
    if advice.pilot is None:
        return ""
    rows = [(candidate.name, candidate.rounds, f"{candidate.metric:.4g}") for candidate in advice.pilot.tried]
    tried = table(("candidate", "rounds", "metric reached"), rows, caption="Short runs", numeric=(1, 2))
    return section("pilot", "What was tried", tried, about=advice.pilot.sentence())


def _measured(advice: Advice) -> str:
    rows = advice.measured.rows()
    return section(
        "measured", "What was measured", table(("quantity", "value", "meaning"), rows, caption="The federation")
    )


def _gains(advice: Advice, names: bool) -> str:
    gains = advice.gains
    if gains is None:
        return ""
    rows = []
    for number, client in enumerate(gains.clients, 1):
        name, interval = client.client if names else f"client {number}", f"{client.low:.3g} to {client.high:.3g}"
        rows.append((name, client.samples, f"{client.gain:.3g}", interval, client.decision))
    inside = table(
        ("client", "samples", "gain", f"{gains.level:.0%} interval", "decision"),
        rows,
        caption="Gain by joining",
        numeric=(1, 2, 3),
    )
    picture = _image(gain_figure(gains), "Every client's gain with its interval.") if names else ""
    return section("gains", "Who gains by joining", picture, folded("Client by client", inside), about=gains.summary())


def _unknown(advice: Advice) -> str:
    items = "".join(f"<li>{text(sentence)}</li>" for sentence in advice.unknown)
    return section("unknown", "What could not be estimated", f"<ul>{items}</ul>" if items else "")


def _study(advice: Advice) -> str:
    if to_toml(advice.best.resolved()) is None:
        return ""
    return section("study", "The advised study", code(advice.toml()), about="Save it and train with parley run.")


def _image(figure: Figure, words: str) -> str:
    drawing = io.BytesIO()
    figure.savefig(drawing, format="png", dpi=90)
    image = base64.b64encode(drawing.getvalue()).decode()
    return f'<figure><img alt="{text(words)}" src="data:image/png;base64,{image}"></figure>'

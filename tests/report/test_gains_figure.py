"""The figure of gains: sorted, coloured by decision, readable for few and for many clients."""

from __future__ import annotations

import numpy as np
import pytest

from parley.advise.gain import ClientGain, Gains
from parley.advise.gain.stop import StopAdvice
from parley.report.gains_figure import gain_figure


def gains(count: int, few: int = 0) -> Gains:
    rng = np.random.default_rng(0)
    clients = [ClientGain(f"few-{i}", 1) for i in range(few)]
    for i in range(count):
        gain, half = float(np.exp(rng.normal(0, 0.8))), float(rng.uniform(0.1, 2))
        low, high = gain * np.exp(-half), gain * np.exp(half)
        decision = "join" if low > 1 else "stay alone" if high < 1 else "undecided"
        clients.append(ClientGain(f"client-{i}", int(rng.integers(3, 400)), gain, 1.0, gain, low, high, decision))
    return Gains(tuple(clients), count + few, "cross-entropy", 0.9, "", StopAdvice(3, ""))


@pytest.mark.parametrize("count", [1, 5, 200])
def test_every_client_is_drawn_in_order(count: int) -> None:
    found = gains(count, few=2)
    drawn = gain_figure(found)
    left, right = drawn.axes
    points = {y: x for line in left.lines[:-1] for x, y in zip(*line.get_data(), strict=True)}
    assert len(points) == count
    values = [points[place] for place in sorted(points)]
    assert values == sorted(values)
    assert len(right.patches) == count
    named = [label.get_text() for label in left.get_yticklabels()]
    assert len(named) == (count if count <= 60 else 0)
    labels = {text.get_text() for text in left.get_legend().get_texts()}
    assert f"undecided ({found.count('undecided')})" in labels
    assert drawn.get_supxlabel() == "Not shown: 2 clients with too few samples"
    assert drawn.get_size_inches()[1] < 17
    drawn.canvas.draw()


def test_nobody_to_draw() -> None:
    gain_figure(gains(0, few=1)).canvas.draw()

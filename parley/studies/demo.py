"""The demonstration: federated methods beside each client alone and all data in one place, on embedded real data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parley.engine.config import load_study
from parley.engine.store import RunStore
from parley.engine.train import train_study
from parley.report import Comparison

STUDY = Path(__file__).with_name("demo.toml")
METHODS = ("fedavg", "fedprox", "fedavgm", "fedadam", "local-only", "centralised")


def demo(store: RunStore, methods: Sequence[str] = METHODS, *, rounds: int = 60, progress: bool = True) -> Comparison:
    """Train the demo's study with each method, keep the runs in the store, and compare them."""
    runs = []
    for method in methods:
        study = load_study(STUDY, [f"algorithm.name={method}", f"name={method}", f"rounds={rounds}"])
        runs.append(train_study(study, store=store, progress=progress))
    return Comparison.of(runs)

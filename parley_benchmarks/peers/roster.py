"""Which libraries are looked at, and what each offers of the five methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parley_benchmarks.peers.setting import Weights


@dataclass(frozen=True)
class Offer:
    """A method as a library has it."""

    variants: tuple[str, ...] = ("",)
    """Several forms of it, each tried."""
    weights: Weights | None = None
    """The only weights of clients it knows; None if it takes the paper's."""


@dataclass(frozen=True)
class Library:
    """A library: its adapter and environment share its name."""

    name: str
    title: str
    package: str
    """What its version is listed under."""
    offers: Mapping[str, Offer]
    note: str = ""
    ours: bool = False
    """It runs in the environment of Parley itself."""
    module: str = field(default="")

    @property
    def adapter(self) -> str:
        return self.module or self.name


BY_CLIENT = Offer(weights="clients")
_ALL = ("fedavg", "fedprox", "scaffold", "fednova", "feddyn")
LIBRARIES = {
    library.name: library
    for library in (
        Library("parley", "Parley", "parley-fl", {name: Offer() for name in _ALL}, ours=True, module="parley_"),
        Library(
            "pfl",
            "pfl-research",
            "pfl",
            {"fedavg": Offer(), "fedprox": Offer(), "scaffold": Offer(("option I", "option II"))},
            "It computes changes of the model in float32.",
        ),
        # Its FedDyn divides alpha by a client's share of the samples, as its authors' code does: weights by samples.
        Library("fluke", "fluke", "fluke-fl", {name: Offer() for name in _ALL} | {"feddyn": Offer(weights="samples")}),
        Library(
            "flower",
            "Flower",
            "flwr",
            {"fedavg": Offer(), "fedprox": Offer(("", "as its example"))},
            "Its strategies average; local training is its users', here the adapter's.",
        ),
        Library("flgo", "FLGo", "flgo", {name: Offer() for name in _ALL} | {"fedprox": BY_CLIENT}),
        Library("fedlab", "FedLab", "fedlab", dict.fromkeys(_ALL, BY_CLIENT), "It weights all clients equally."),
    )
}

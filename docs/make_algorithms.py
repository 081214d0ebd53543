"""Writes docs/algorithms.md from the algorithms' own docstrings and the list of what conformance checks.

    python docs/make_algorithms.py

A test compares the page with the code, so run this after changing an algorithm.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from parley.algorithms import algorithms
from parley.studies.conformance import cases

PAGE = Path(__file__).with_name("algorithms.md")

INTRODUCTION = """\
# Algorithms

<!-- Made by docs/make_algorithms.py from the code; do not edit. -->

One section per file of `parley/algorithms`, with the pseudo-code that stands at its top. The settings of each algorithm
are in [configuration.md](configuration.md); what is said about fixed points and special cases is checked by
`parley conformance`, see [conformance.md](conformance.md).

| method | settles at (quadratics, exact gradients) | traffic, FedAvg = 1 | a client remembers |
| --- | --- | --- | --- |
| `fedavg`, `fedprox`, `reptile`, ... | its surrogate's minimiser, which drifts off with lr and steps | 1 | nothing |
| `fednova` | the normalised surrogate's minimiser: step counts no longer count as weights | 1 | nothing |
| `scaffold` | the true optimum | 2 | its variate |
| `feddyn` | the true optimum | 1 | its linear term |
| `fedals` | the fixed point of its alpha tau-step map | 1/alpha, and the head | its representation, optimizer state |
| `fedals-scaffold` | the true optimum | 2/alpha, and twice the head | that and its variates |
| `datashare` | FedAvg's point on data that are more alike | 1, and the global set once | nothing |
| `feature-fedavg`, `feature-fedprox` | paper 000's limit for the features | 1 | nothing |
| `kernel-fedavg`, `kernel-fedprox` | paper 000's limit for any kernel | n_i numbers, inputs once | nothing |
| `ntk-fl` | the pooled minimum of a linear model | Jacobians: hundreds; SENDS THE DATA | nothing |
| `cp-ntk-fl` | as `ntk-fl` on projected inputs ([cp-ntk](cp-ntk.md)) | sparse Jacobians, through parties | its keys |
| `ridge` | pooled ridge regression of the last layer, after one round | d (d + 1)/2 + d outputs, once | nothing |
| `tct` | the pooled solution on the network's tangent features | first 1, then 2 of outputs x features | its variate |
| `fedrep` | min over phi of sum_i w_i min_h f_i, with one step of phi | 1, without the head | its head |
| `fedbabu` | FedAvg's point for the body, the head as it began | 1, without the head | in the end, its model |
| `ditto` | FedAvg's point w*; clients: argmin f_k + lam/2 \\|\\|v - w*\\|\\|^2 | 1 | its model |
| `moon` | (no closed form; mu = 0 is FedAvg) | 1 | its previous model |
| `ema` | where the method does that it averages | the method's | what it remembers there |
| `histogram-boosting` | the trees of pooled data, bit for bit ([trees](trees.md)) | histograms | bins, predictions |
| `tree-bagging`, `tree-cyclic` | (no fixed point) | its new trees | its rows' predictions |
| `ffgb` | f* where inputs are alike, else near it ([boosting.md](boosting.md)) | new learners | f at its samples |
| `ffgb-distill` | sum_i p_i c_i / (1 + mu) for linear functions and an exact student | 1 | nothing |
| `fedavg-distill` | FedAvg's point for linear models | 1 | nothing |
| `statistics` | counts and moments of pooled data, bit for bit ([statistics](statistics.md)) | sums | nothing |
| `local-only` | every client's own optimum | 0 | its model |
| `centralised`, `lookahead`, `minibatch-sgd` | the true optimum | (pooled data) | nothing |

"True optimum" under partial participation needs uniform weights or `cohort.scheme = "unbiased"`: cohorts whose size
weights are scaled to sum to one estimate the population's mean with a bias, whatever the method.

## Methods that are settings of FedALS

A part of the model with the period "never" stays with each client: it does not travel, neither its parameters nor its
statistics. Patterns are matched with the names of parameters (`model.named_parameters()`).

```python
import parley as pl
from torch import nn

federation = pl.data.digits().split(pl.Dirichlet(0.5), clients=8, seed=0)
mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
normalised = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))

fedper = pl.FedALS(lr=0.1, steps=5, periods={"3.*": "never"})  # a head of one's own
lg_fedavg = pl.FedALS(lr=0.1, steps=5, alpha="never")  # a representation of one's own under a common head
fedbn = pl.FedALS(lr=0.1, steps=5, batch=0, periods={"2.*": "never"})  # normalisations of one's own

runs = {
    "FedPer": pl.train(fedper, federation, model=mlp, rounds=5),
    "LG-FedAvg": pl.train(lg_fedavg, federation, model=mlp, rounds=5),
    "FedBN": pl.train(fedbn, federation, model=normalised, rounds=5),
}
```

FedPer is Arivazhagan et al. (2019), LG-FedAvg Liang et al. (2020), FedBN Li et al. (ICLR 2021).
"""


def page() -> str:
    """The whole page."""
    recorded: dict[str, list[str]] = {}
    for case in cases():
        recorded.setdefault(case.method, []).append(case.statement)
    modules: dict[str, list[str]] = {}
    for name in algorithms:
        module = algorithms[name].__module__
        if module.startswith("parley."):
            modules.setdefault(module, []).append(name)
    # A family's head before its members, the family most others build on first.
    order = sorted(modules, key=lambda module: (module != "parley.algorithms.local_update", module))
    parts = [INTRODUCTION]
    for module in order:
        title, _, rest = (inspect.getdoc(sys.modules[module]) or "").partition("\n")
        parts.append(
            f"## {title.rstrip('.')}\n\n`{module.replace('.', '/')}.py`\n\n{rest.strip(chr(10))}".rstrip() + "\n"
        )
        lines = {name: inspect.getsourcelines(algorithms[name])[1] for name in modules[module]}
        for name in sorted(lines, key=lambda name: lines[name]):
            parts.append(section(name, recorded.get(name, [])))
    return "\n".join(parts)


def section(name: str, statements: list[str]) -> str:
    text = f"### `{name}`\n\n{inspect.getdoc(algorithms[name])}\n"
    if statements:
        text += "\nConformance:\n\n" + "".join(f"- {statement}\n" for statement in statements)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

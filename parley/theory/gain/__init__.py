"""Who gains by joining: with known truths (`truth`), and from data alone with an interval (`estimate`, `interval`).

This module only gathers the public names; each of them is documented where it lives.
"""

from parley.theory.gain.estimate import FederatedFit, LocalFit, Predictor, estimate_gains
from parley.theory.gain.interval import (
    GainEstimate,
    HeldOut,
    Verdict,
    check_level,
    decide,
    gain_from_losses,
)
from parley.theory.gain.models import (
    best_round,
    feature_federated,
    feature_local,
    feature_path,
    kernel_federated,
    kernel_local,
    kernel_path,
)
from parley.theory.gain.truth import (
    Gain,
    drawn_gains,
    expected_gains,
    local_risk,
    minimum_norm,
    theorem16,
    theorem16_threshold,
    theorem17,
)

__all__ = [
    "FederatedFit",
    "Gain",
    "GainEstimate",
    "HeldOut",
    "LocalFit",
    "Predictor",
    "Verdict",
    "best_round",
    "check_level",
    "decide",
    "drawn_gains",
    "estimate_gains",
    "expected_gains",
    "feature_federated",
    "feature_local",
    "feature_path",
    "gain_from_losses",
    "kernel_federated",
    "kernel_local",
    "kernel_path",
    "local_risk",
    "minimum_norm",
    "theorem16",
    "theorem16_threshold",
    "theorem17",
]

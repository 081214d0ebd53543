"""Federated training with scikit-learn's interface: `pl.sklearn.FederatedClassifier().fit(X, y, groups=hospitals)`.

Whose sample a row is comes as metadata, so pipelines, grids and cross-validation route it like `sample_weight`.
"""

from parley.sklearn.estimators import (
    FederatedBoostingClassifier,
    FederatedBoostingRegressor,
    FederatedClassifier,
    FederatedRegressor,
)

__all__ = [
    "FederatedBoostingClassifier",
    "FederatedBoostingRegressor",
    "FederatedClassifier",
    "FederatedRegressor",
]

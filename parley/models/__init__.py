"""Models: small networks as specifications (`models.mlp(100)`), their traits, buffer policies and export."""

from parley.models.dense import Linear, Mlp, mlp
from parley.models.spec import ModelSpec, Step, Traits, build_module, models, traits

linear = Linear

__all__ = [
    "Linear",
    "Mlp",
    "ModelSpec",
    "Step",
    "Traits",
    "build_module",
    "linear",
    "mlp",
    "models",
    "traits",
]

"""Models: small networks as specifications (`models.mlp(100)`), their traits, buffer policies and export.

A name, and the model a study names, loads when somebody asks for it.
"""

from parley.core.lazy import lazy
from parley.models.spec import models

_HOME, __getattr__, __dir__ = lazy(__name__)

__all__ = sorted(_HOME)

_MODELS = {
    "parley.models.dense": "linear mlp",
    "parley.models.feature_model": "features",
    "parley.models.hugging_face": "hf-causal hf-classifier",
    "parley.models.images": "cifar10-cnn cnn001 cnn002",
    "parley.models.resnet": "resnet18 resnet20",
    "parley.models.text": "lstm text-bag",
}
models.homes |= {name: module for module, names in _MODELS.items() for name in names.split()}

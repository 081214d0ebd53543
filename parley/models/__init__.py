"""Models: small networks as specifications (`models.mlp(100)`), their traits, buffer policies and export."""

from parley.models.buffers import BufferPolicy, batch_statistics, check_policy, float_buffers, int_buffers
from parley.models.dense import Linear, Mlp, mlp
from parley.models.export import export_module
from parley.models.feature_model import FeatureModel, Features, feature_maps
from parley.models.hugging_face import HfCausal, HfClassifier
from parley.models.images import Cifar10Cnn, Cnn001, Cnn002
from parley.models.resnet import ResNet18, ResNet20
from parley.models.spec import ModelSpec, Step, Traits, build_module, models, traits
from parley.models.text import Lstm, TextBag

features = Features
hf_causal = HfCausal
hf_classifier = HfClassifier
linear = Linear
cnn001 = Cnn001
cnn002 = Cnn002
cifar10_cnn = Cifar10Cnn
resnet18 = ResNet18
resnet20 = ResNet20
lstm = Lstm
text_bag = TextBag

__all__ = [
    "BufferPolicy",
    "Cifar10Cnn",
    "Cnn001",
    "Cnn002",
    "FeatureModel",
    "Features",
    "HfCausal",
    "HfClassifier",
    "Linear",
    "Lstm",
    "Mlp",
    "ModelSpec",
    "ResNet18",
    "ResNet20",
    "Step",
    "TextBag",
    "Traits",
    "batch_statistics",
    "build_module",
    "check_policy",
    "cifar10_cnn",
    "cnn001",
    "cnn002",
    "export_module",
    "feature_maps",
    "features",
    "float_buffers",
    "hf_causal",
    "hf_classifier",
    "int_buffers",
    "linear",
    "lstm",
    "mlp",
    "models",
    "resnet18",
    "resnet20",
    "text_bag",
    "traits",
]

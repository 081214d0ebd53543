"""Models; `__init__.py` reads this file for where each name comes from."""

from parley.models.buffers import BufferPolicy as BufferPolicy
from parley.models.buffers import batch_statistics as batch_statistics
from parley.models.buffers import check_policy as check_policy
from parley.models.buffers import float_buffers as float_buffers
from parley.models.buffers import int_buffers as int_buffers
from parley.models.crops import RandomCrop as RandomCrop
from parley.models.dense import Linear as Linear
from parley.models.dense import Mlp as Mlp
from parley.models.dense import mlp as mlp
from parley.models.export import export_module as export_module
from parley.models.feature_model import FeatureModel as FeatureModel
from parley.models.feature_model import Features as Features
from parley.models.feature_model import RandomFourierFeatures as RandomFourierFeatures
from parley.models.feature_model import feature_maps as feature_maps
from parley.models.hugging_face import HfCausal as HfCausal
from parley.models.hugging_face import HfClassifier as HfClassifier
from parley.models.images import Cifar10Cnn as Cifar10Cnn
from parley.models.images import Cnn001 as Cnn001
from parley.models.images import Cnn002 as Cnn002
from parley.models.llama2c import convert_llama2c as convert_llama2c
from parley.models.resnet import Norm as Norm
from parley.models.resnet import ResNet18 as ResNet18
from parley.models.resnet import ResNet20 as ResNet20
from parley.models.spec import ModelSpec as ModelSpec
from parley.models.spec import Step as Step
from parley.models.spec import Traits as Traits
from parley.models.spec import build_module as build_module
from parley.models.spec import models as models
from parley.models.spec import traits as traits
from parley.models.text import Lstm as Lstm
from parley.models.text import TextBag as TextBag

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

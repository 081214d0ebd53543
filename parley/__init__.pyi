"""The public names of Parley and where they come from; `parley/__init__.py` reads this file, so it is said once."""

from parley import (
    algorithms as algorithms,
    channels as channels,
    core as core,
    data as data,
    engine as engine,
    learn as learn,
    models as models,
    report as report,
    runtimes as runtimes,
    store as store,
    studies as studies,
    study as study,
    theory as theory,
)
from parley.advise.attack import attack as attack, Findings as Findings
from parley.advise.gain import gain as gain, Gains as Gains
from parley.advise.plan.advice import Advice as Advice
from parley.advise.plan.make import advise as advise
from parley.algorithms.base.local_sgd import LocalSGD as LocalSGD
from parley.algorithms.base.exchange import (
    ask as ask,
    Exchange as Exchange,
    exchange as exchange,
    Party as Party,
    Reply as Reply,
)
from parley.algorithms.base.protocol import (
    Algorithm as Algorithm,
    algorithm as algorithm,
    Cohort as Cohort,
    Contexts as Contexts,
    Needs as Needs,
    OneExchange as OneExchange,
    Questions as Questions,
    Replies as Replies,
)
from parley.algorithms.base.server import (
    Adagrad as Adagrad,
    Adam as Adam,
    Descent as Descent,
    HeavyBall as HeavyBall,
    Nesterov as Nesterov,
    Yogi as Yogi,
)
from parley.algorithms.baselines import (
    Centralised as Centralised,
    LocalOnly as LocalOnly,
    Lookahead as Lookahead,
    MinibatchSGD as MinibatchSGD,
)
from parley.algorithms.cp_ntk_fl import CpNtkFL as CpNtkFL
from parley.algorithms.datashare import DataShare as DataShare
from parley.algorithms.fedals import FedALS as FedALS, FedALSScaffold as FedALSScaffold
from parley.algorithms.fedavg_distill import FedAvgDistill as FedAvgDistill
from parley.algorithms.feddyn import FedDyn as FedDyn
from parley.algorithms.fednova import FedNova as FedNova
from parley.algorithms.histogram_boosting import HistogramBoosting as HistogramBoosting
from parley.algorithms.ffgb import FFGB as FFGB
from parley.algorithms.ffgb_distill import FFGBDistill as FFGBDistill
from parley.algorithms.kernel import KernelFedAvg as KernelFedAvg, KernelFedProx as KernelFedProx
from parley.algorithms.kernel_features import FeatureFedAvg as FeatureFedAvg, FeatureFedProx as FeatureFedProx
from parley.algorithms.local_update import (
    FedAdagrad as FedAdagrad,
    FedAdam as FedAdam,
    FedAvg as FedAvg,
    FedAvgM as FedAvgM,
    FedProx as FedProx,
    FedSGD as FedSGD,
    FedYogi as FedYogi,
    FOMAML as FOMAML,
    LocalUpdate as LocalUpdate,
    MAML as MAML,
    MetaMinibatchProx as MetaMinibatchProx,
    Reptile as Reptile,
)
from parley.algorithms.scaffold import Scaffold as Scaffold
from parley.algorithms.statistics import FederatedStatistics as FederatedStatistics
from parley.algorithms.tree_baselines import TreeBagging as TreeBagging, TreeCyclic as TreeCyclic
from parley.channels.base import Channel as Channel, channel as channel
from parley.core.context import Context as Context
from parley.core.errors import (
    InputError as InputError,
    ParleyError as ParleyError,
    ParleyWarning as ParleyWarning,
    QuorumError as QuorumError,
    StopRun as StopRun,
    UnsupportedError as UnsupportedError,
    WireError as WireError,
)
from parley.core.form import Form as Form
from parley.core.key import Key as Key
from parley.core.message import Memory as Memory, Message as Message, State as State
from parley.core.registry import Registry as Registry
from parley.core.tree import Tree as Tree
from parley.data import (
    ClientData as ClientData,
    DataInfo as DataInfo,
    Dataset as Dataset,
    Dirichlet as Dirichlet,
    Federation as Federation,
    Fixed as Fixed,
    IID as IID,
    Natural as Natural,
    Pachinko as Pachinko,
    Partitioner as Partitioner,
    QuantitySkew as QuantitySkew,
    Shards as Shards,
    SHomogeneity as SHomogeneity,
    Sorted as Sorted,
)
from parley.data.preprocessing import Preprocessing as Preprocessing
from parley.engine.importance import importance as importance
from parley.engine.listeners import Listener as Listener
from parley.engine.loggers import MLflow as MLflow, TensorBoard as TensorBoard, WandB as WandB
from parley.engine.observers import (
    ConsensusDistance as ConsensusDistance,
    Drift as Drift,
    GradientDissimilarity as GradientDissimilarity,
    WeakLearning as WeakLearning,
)
from parley.engine.privacy.settings import Privacy as Privacy
from parley.engine.run import plot as plot, Run as Run
from parley.engine.settings import Evaluation as Evaluation, Faults as Faults, Sampling as Sampling
from parley.learn.batches import Work as Work
from parley.learn.last_layer import representation as representation
from parley.learn.losses import Loss as Loss
from parley.learn.metrics import metric as metric
from parley.learn.optimizers import LocalOptimizer as LocalOptimizer
from parley.learn.stack import Data as Data
from parley.learn.task import Predictor as Predictor, Task as Task
from parley.learn.transforms import GradientTransform as GradientTransform
from parley.learn.schedules import Cosine as Cosine, Exponential as Exponential, Inverse as Inverse
from parley.learn.weak import (
    Estimator as Estimator,
    KernelRidge as KernelRidge,
    Learner as Learner,
    Linear as Linear,
    Network as Network,
    RegressionTree as RegressionTree,
)
from parley.models.spec import ModelSpec as ModelSpec
from parley.store.records import Failure as Failure, Metric as Metric, RoundRecord as RoundRecord
from parley.store.runs import RunStore as RunStore
from parley.store.tables import results as results
from parley.study.description import Logging as Logging
from parley.study.difference import Difference as Difference, difference as difference
from parley.study.load import export_run as export_run, load_run as load_run
from parley.study.statistics import Statistics as Statistics, statistics as statistics
from parley.study.study import load_study as load_study, Study as Study
from parley.study.train import train as train
from parley.study.tuning.tune import tune as tune
from parley.study.warm_start import WarmStart as WarmStart

__version__: str
from parley.advise.heterogeneity import heterogeneity as heterogeneity
from parley.algorithms.base.local_sgd import Local as Local
from parley.algorithms.base.parts import body_and_head as body_and_head
from parley.algorithms.base.parts import buffers_of as buffers_of
from parley.algorithms.base.parts import parameters_of as parameters_of
from parley.algorithms.ditto import Ditto as Ditto
from parley.algorithms.ema import EMA as EMA
from parley.algorithms.fedbabu import FedBABU as FedBABU
from parley.algorithms.fedrep import FedRep as FedRep
from parley.algorithms.moon import MOON as MOON
from parley.algorithms.richardson_romberg import RichardsonRomberg as RichardsonRomberg
from parley.algorithms.ridge import Ridge as Ridge
from parley.algorithms.tct import TCT as TCT
from parley.algorithms.ntk_fl import NtkFL as NtkFL
from parley.channels.clip import clip as clip
from parley.channels.ef21 import ef21 as ef21
from parley.channels.projection import projection as projection
from parley.channels.quantise import fedcom as fedcom, fedpaq as fedpaq, qsgd as qsgd
from parley.channels.random_k import random_k as random_k
from parley.channels.shuffle import shuffle as shuffle
from parley.channels.secure.channel import secure_sum as secure_sum
from parley.channels.sign import sign as sign
from parley.channels.noise import noise as noise
from parley.channels.top_k import top_k as top_k
from parley.core import tree as tree
from parley.learn import transforms as transforms

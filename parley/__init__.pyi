"""The public names of Parley and where they come from; `parley/__init__.py` reads this file, so it is said once."""

from parley import (
    algorithms as algorithms,
    channels as channels,
    conformance as conformance,
    core as core,
    data as data,
    engine as engine,
    models as models,
    report as report,
    runtimes as runtimes,
    sklearn as sklearn,
    store as store,
    study as study,
    theory as theory,
)
from parley.attack.findings import Findings as Findings
from parley.attack.run import attack as attack
from parley.attack.matching import Effort as Effort
from parley.advise.gain import gain as gain, Gains as Gains
from parley.advise.gain.result import ClientGain as ClientGain
from parley.advise.plan.advice import Advice as Advice
from parley.advise.plan.make import advise as advise
from parley.analyse.cox import Cox as Cox
from parley.analyse.glm import GLM as GLM
from parley.analyse.kaplan_meier import KaplanMeier as KaplanMeier
from parley.analyse.curves import SurvivalCurves as SurvivalCurves
from parley.analyse.run import Analysis as Analysis, analyse as analyse
from parley.algorithms.averaging.local_sgd import LocalSGD as LocalSGD
from parley.algorithms.exchange import (
    ask as ask,
    Exchange as Exchange,
    exchange as exchange,
    Party as Party,
    Reply as Reply,
)
from parley.algorithms.protocol import (
    Algorithm as Algorithm,
    algorithm as algorithm,
    Cohort as Cohort,
    Contexts as Contexts,
    Learned as Learned,
    Needs as Needs,
    OneExchange as OneExchange,
    Outcome as Outcome,
    Questions as Questions,
    Replies as Replies,
)
from parley.algorithms.averaging.server import (
    Adagrad as Adagrad,
    Adam as Adam,
    Descent as Descent,
    HeavyBall as HeavyBall,
    Nesterov as Nesterov,
    Yogi as Yogi,
)
from parley.algorithms.averaging.baselines import (
    Centralised as Centralised,
    LocalOnly as LocalOnly,
    Lookahead as Lookahead,
    MinibatchSGD as MinibatchSGD,
)
from parley.algorithms.ntk.cp_ntk_fl import CpNtkFL as CpNtkFL
from parley.algorithms.averaging.datashare import DataShare as DataShare
from parley.algorithms.parts.fedals import FedALS as FedALS
from parley.algorithms.parts.fedals_scaffold import FedALSScaffold as FedALSScaffold
from parley.algorithms.boosting.fedavg_distill import FedAvgDistill as FedAvgDistill
from parley.algorithms.averaging.feddyn import FedDyn as FedDyn
from parley.algorithms.averaging.fednova import FedNova as FedNova
from parley.algorithms.trees.histogram_boosting import HistogramBoosting as HistogramBoosting
from parley.algorithms.boosting.ffgb import FFGB as FFGB
from parley.algorithms.boosting.ffgb_distill import FFGBDistill as FFGBDistill
from parley.algorithms.kernel.exact import KernelFedAvg as KernelFedAvg, KernelFedProx as KernelFedProx
from parley.algorithms.kernel.features import FeatureFedAvg as FeatureFedAvg, FeatureFedProx as FeatureFedProx
from parley.algorithms.averaging.local_update import (
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
from parley.algorithms.averaging.scaffold import Scaffold as Scaffold
from parley.statistics.method import FederatedStatistics as FederatedStatistics
from parley.algorithms.trees.baselines import TreeBagging as TreeBagging, TreeCyclic as TreeCyclic
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
from parley.core.form import Number as Number
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
from parley.data.columns import Column as Column
from parley.data.preprocessing import Preprocessing as Preprocessing
from parley.study.importance import importance as importance
from parley.engine.listeners import Listener as Listener
from parley.display.loggers import MLflow as MLflow, TensorBoard as TensorBoard, WandB as WandB
from parley.engine.observers import (
    ConsensusDistance as ConsensusDistance,
    ConsensusWithStatistics as ConsensusWithStatistics,
    Drift as Drift,
    GradientDissimilarity as GradientDissimilarity,
    layer_groups as layer_groups,
    WeakLearning as WeakLearning,
)
from parley.privacy.settings import Privacy as Privacy
from parley.robust.settings import Robust as Robust
from parley.engine.run import plot as plot, Run as Run
from parley.engine.settings import Evaluation as Evaluation, Faults as Faults, Sampling as Sampling
from parley.training.batches import Work as Work
from parley.training.last_layer import representation as representation
from parley.training.losses import Loss as Loss
from parley.training.metrics import metric as metric
from parley.training.optimizers import LocalOptimizer as LocalOptimizer
from parley.training.stack import Data as Data
from parley.training.task import Predictor as Predictor, Task as Task
from parley.training.transforms import GradientTransform as GradientTransform
from parley.training.schedules import Cosine as Cosine, Exponential as Exponential, Inverse as Inverse
from parley.algorithms.boosting.weak import (
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
from parley.study.study import Logging as Logging
from parley.study.difference import Difference as Difference, difference as difference
from parley.study.stored import export_run as export_run, load_run as load_run
from parley.statistics.run import Statistics as Statistics, statistics as statistics
from parley.study.toml import load_study as load_study, Study as Study
from parley.study.task import make_task as make_task
from parley.study.study import Model as Model
from parley.study.train import train as train
from parley.tuning.attempt import Attempt as Attempt, attempt as attempt
from parley.tuning.tune import tune as tune
from parley.study.warm_start import WarmStart as WarmStart

__version__: str
from parley.advise.heterogeneity import heterogeneity as heterogeneity
from parley.algorithms.averaging.local_sgd import Local as Local
from parley.algorithms.parts.parts import body_and_head as body_and_head
from parley.algorithms.parts.parts import buffers_of as buffers_of
from parley.algorithms.parts.parts import parameters_of as parameters_of
from parley.algorithms.personal.ditto import Ditto as Ditto
from parley.algorithms.wrappers.ema import EMA as EMA
from parley.algorithms.personal.fedbabu import FedBABU as FedBABU
from parley.algorithms.personal.fedrep import FedRep as FedRep
from parley.algorithms.personal.moon import MOON as MOON
from parley.algorithms.wrappers.wrapper import Wrapper as Wrapper
from parley.algorithms.wrappers.richardson_romberg import RichardsonRomberg as RichardsonRomberg
from parley.algorithms.kernel.ridge import Ridge as Ridge
from parley.algorithms.ntk.tct import TCT as TCT
from parley.algorithms.ntk.ntk_fl import NtkFL as NtkFL
from parley.privacy.clip import clip as clip
from parley.channels.ef21 import ef21 as ef21
from parley.channels.projection import projection as projection
from parley.channels.quantise import fedcom as fedcom, fedpaq as fedpaq, qsgd as qsgd
from parley.channels.random_k import random_k as random_k
from parley.channels.shuffle import shuffle as shuffle
from parley.secure.channel import secure_sum as secure_sum
from parley.channels.sign import sign as sign
from parley.privacy.noise import noise as noise
from parley.channels.top_k import top_k as top_k
from parley.core import tree as tree
from parley.training import transforms as transforms

"""Training from Python: `train(FedAvg(lr=0.1), federation, model=mlp(100), rounds=100, cohort=20)`."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from parley.algorithms.base.protocol import Algorithm, as_algorithm
from parley.channels import Chain, Channel, Channels
from parley.core.errors import InputError
from parley.core.key import Key
from parley.data import ClientData, Federation
from parley.data.sources import InMemory
from parley.engine.evaluation import Evaluator
from parley.engine.keeper import Keeper
from parley.engine.listeners import Listener
from parley.engine.loop import Loop
from parley.engine.run import Run
from parley.engine.sampling import Sampler
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.learn.losses import Loss, losses
from parley.learn.task import Task
from parley.models.buffers import BufferPolicy, check_policy
from parley.models.spec import ModelSpec, build_module
from parley.runtimes import Job, open_runtime
from parley.store.memories import Memories
from parley.store.runs import RunStore

if TYPE_CHECKING:
    from parley.study.study import Study

Model = nn.Module | ModelSpec | Callable[[], nn.Module]


def train(
    algorithm: Algorithm,
    federation: Federation,
    *,
    model: Model,
    rounds: int,
    cohort: int | Sampling | None = None,
    seed: int = 0,
    loss: str | Loss | None = None,
    buffers: BufferPolicy = "average",
    faults: Faults | None = None,
    evaluation: Evaluation | None = None,
    runtime: str = "auto",
    workers: int | None = None,
    store: RunStore | str | Path | None = None,
    name: str = "",
    resume: str | None = None,
    checkpoint: float = 5.0,
    listeners: Sequence[Listener] = (),
    channels: Channel | Chain | Sequence[Channel] = (),
    secret: bytes | None = None,
    progress: bool = False,
    config: dict[str, Any] | None = None,
    fingerprint: str = "",
) -> Run:
    """Train and return the run.

    `store` keeps metrics, checkpoints and the final model under a run id; `resume` names a stored run to go on with
    (pass the same arguments as before: the same seed gives the same numbers). `config` and `fingerprint` describe the
    run in the store; the command line fills them from the study file.
    """
    if rounds < 1:
        raise InputError(f"rounds must be at least 1, not {rounds}.")
    sampling = cohort if isinstance(cohort, Sampling) else Sampling(size=cohort)
    faults = faults or Faults()
    algorithm = as_algorithm(algorithm)
    if sampling.scheme == "auto":
        sampling = replace(sampling, scheme=algorithm.scheme)
    if algorithm.pooled:
        federation = pool(federation)
        sampling, faults = Sampling(), Faults(deadline=faults.deadline)  # data in one place is never absent
    federation = prepared(algorithm, federation, seed)
    task = make_task(federation, model, seed, loss, buffers)
    task = replace(task, observe=frozenset(what for listener in listeners for what in listener.wants))
    if sampling.size is not None and sampling.size > len(federation):
        raise InputError(f"cohort.size is {sampling.size}, but the federation has only {len(federation)} clients.")
    key = Key(seed)
    job = Job(algorithm, task, federation, Channels.of(algorithm, channels), secret or secrets.token_bytes(16))
    with ExitStack() as stack:
        run = Run(algorithm, task, federation, algorithm.init(task, key.fold("init")), name=name)
        seen = rounds * (sampling.size or len(federation)) * federation.size(federation.ids[0])
        opened, why = open_runtime(runtime, job, workers, faults.deadline, seen)
        stack.callback(opened.close)
        run.note = why or f"runtime {opened.name}"
        keeper = None
        if store is not None:
            kept = store if isinstance(store, RunStore) else stack.enter_context(RunStore(store))
            new = resume is None
            run.id = kept.create(name or "run", config or {}, fingerprint) if new else kept.info(str(resume)).id
            kept.claim(run.id, None if new else config)
            stack.callback(kept.release, run.id)
            keeper = Keeper(kept, run.id, checkpoint)
        elif resume is not None:
            raise InputError("resume needs the store in which the run is kept.")
        memories = run.memories = Memories(keeper.memory_folder if keeper is not None else None)
        failing = stack.enter_context(ExitStack())
        failing.callback(memories.close)
        heard = [*listeners, *_progress(progress)]
        if keeper is not None and resume is not None and keeper.restore(run, memories):
            why = f"going on after round {run.records[-1].number if run.records else 0} of run {run.id}; {run.note}"
        for listener in heard:
            listener.start(run, rounds)
            listener.note(why or run.note)
        evaluator = Evaluator(job, evaluation or Evaluation(), key.fold("evaluation"))
        sampler = Sampler(federation, sampling, faults, key.fold("sampling"))
        Loop(job, run, opened, sampler, evaluator, faults, key, rounds, memories, keeper, heard).go()
        failing.pop_all()
        memories.rest(run.records[-1].number if run.records else 0)
    return run


def train_study(
    study: Study,
    *,
    store: RunStore | None = None,
    resume: bool = False,
    listeners: Sequence[Listener] = (),
    runtime: str | None = None,
    progress: bool = False,
) -> Run:
    """Train what a study file says.

    `resume` goes on with the newest run of the same configuration that did not reach its end, or that ended before the
    rounds asked for now.
    """
    unfinished = store.unfinished(study.fingerprint(), study.rounds) if store is not None and resume else None
    if resume and unfinished is None:
        raise InputError("there is no unfinished run of this configuration to resume; start it without --resume.")
    return train(
        study.algorithm, study.federation(), model=study.model, rounds=study.rounds, cohort=study.sampling,
        seed=study.seed, loss=study.loss, buffers=study.buffers, faults=study.faults, evaluation=study.evaluation,
        runtime=runtime or study.runtime, workers=study.workers, store=store, name=study.name, resume=unfinished,
        checkpoint=study.checkpoint, listeners=listeners, progress=progress, config=study.resolved(),
        fingerprint=study.fingerprint(),
    )  # fmt: skip


def make_task(
    federation: Federation, model: Model, seed: int, loss: str | Loss | None = None, buffers: BufferPolicy = "average"
) -> Task:
    """The task of a federation and a model, weights drawn from the seed; checked on one sample."""
    info = federation.info
    module = build_module(model, info.shape, info.outputs, Key(seed).fold("model"), federation.public)
    check_policy(module, buffers)
    if not any(p.requires_grad for p in module.parameters()):
        raise InputError(f"the model {type(module).__name__} has no trainable parameters.")
    default = "mse" if info.kind == "regression" else "cross-entropy"
    chosen = losses[loss or default] if loss is None or isinstance(loss, str) else loss
    task = Task(module, chosen, info, len(federation), buffers, public=federation.public)
    _try_out(task, federation)
    return task


def pool(federation: Federation) -> Federation:
    """All clients' samples at one client, for centralised baselines."""
    clients = [federation.client(client) for client in federation.ids]
    data = ClientData(torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]))
    return Federation(federation.info, ("all",), InMemory((data,)), test=federation.test, public=federation.public)


def prepared(algorithm: Algorithm, federation: Federation, seed: int) -> Federation:
    """The federation as the method trains on it."""
    return algorithm.prepare(federation, Key(seed).fold("prepare"))


@torch.no_grad()
def _try_out(task: Task, federation: Federation) -> None:
    """One forward pass, so that a model that does not fit the data is told before anything starts."""
    client = federation.client(federation.ids[0])
    predict = task.predictor(task.initial(), task.initial_buffers())
    if task.info.vocabulary:
        try:
            predict(torch.full_like(client.x[:1], task.info.vocabulary - 1))
        except IndexError:
            raise InputError(
                f"the data have {task.info.vocabulary} token ids, more than the model {type(task.network).__name__} "
                "knows; set its vocabulary, or give a model of next tokens data with such targets."
            ) from None
    try:
        outputs = predict(client.x[:2])
        value = task.loss(outputs, client.y[:2])
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        text = str(error).splitlines()[0]
        raise InputError(
            f"the model {type(task.network).__name__} does not fit samples of shape {tuple(client.x.shape[1:])} "
            f"and {client.x.dtype}: {text}"
        ) from None
    if value.shape != (len(client.x[:2]),):
        raise InputError(f"the loss must give one number per sample, [2] for two of them, not {list(value.shape)}.")


def _progress(wanted: bool) -> list[Listener]:
    if not wanted:
        return []
    from parley.engine.progress import Progress

    return [Progress()]

"""Training: `train(study)`, or `train(FedAvg(lr=0.1), federation, model=mlp(100), rounds=100, cohort=20)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from parley.algorithms.protocol import Algorithm, as_algorithm
from parley.channels import Chain, Channel, Channels, channels
from parley.core.errors import InputError, computable
from parley.core.key import Key
from parley.core.text import shown
from parley.data import Federation
from parley.data.preprocessing import Preprocessing
from parley.display.loggers import loggers
from parley.engine.checkpointer import Checkpointer
from parley.engine.evaluation import Evaluator
from parley.engine.listeners import Listener
from parley.engine.loop import Loop
from parley.engine.observers import listeners as named
from parley.engine.reading import Readings
from parley.engine.run import Run
from parley.engine.sampling import Sampler
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.models.buffers import BufferPolicy
from parley.privacy import Privacy
from parley.robust.settings import Robust
from parley.runtimes import Job, Runtime, open_runtime
from parley.runtimes.auto import available_cores
from parley.store.artefacts import keep_secret, secret_root
from parley.store.memories import Memories
from parley.store.runs import RunStore
from parley.study.channel_names import stages
from parley.study.difference import check_resumable, difference, essential, why_not
from parley.study.initial import Initial, from_file, from_rounds, from_run, started
from parley.study.study import InitFrom, Logging, Model, Study, as_study
from parley.study.task import make_task, pool, warn_of_scale
from parley.study.warm_start import GivenWeights, Source, WarmStart, pinned, source_store
from parley.training.devices import resolve
from parley.training.losses import Loss
from parley.training.metrics import scorers
from parley.training.task import Precision, Task

if TYPE_CHECKING:
    from parley.engine.attackers import Attackers
    from parley.privacy import PrivacyPlan

__all__ = ["Model", "make_task", "pool", "train"]


@overload
def train(
    study: Study,
    /,
    *,
    store: RunStore | str | Path | None = None,
    resume: bool | str | None = None,
    listeners: Sequence[Listener] = (),
    secret: bytes | None = None,
    progress: bool = False,
    execute: Callable[[Job], Runtime] | None = None,
    **changes: Any,
) -> Run: ...
@overload
def train(
    algorithm: Algorithm,
    federation: Federation,
    /,
    *,
    model: Model | None = None,
    rounds: int = 100,
    cohort: int | Sampling | None = None,
    seed: int = 0,
    loss: str | Loss | None = None,
    buffers: BufferPolicy = "average",
    precision: Precision = "full",
    faults: Faults | None = None,
    evaluation: Evaluation | None = None,
    runtime: str = "auto",
    workers: int | None = None,
    address: str | None = None,
    device: str = "auto",
    checkpoint: float = 5.0,
    channels: Channel | Chain | Sequence[Channel] = (),
    privacy: Privacy | None = None,
    robust: Robust | None = None,
    preprocessing: Preprocessing | None = None,
    name: str = "",
    revision: str = "",
    logging: Logging = ...,
    init_from: InitFrom | None = None,
    store: RunStore | str | Path | None = None,
    resume: bool | str | None = None,
    listeners: Sequence[Listener] = (),
    secret: bytes | None = None,
    progress: bool = False,
) -> Run: ...
def train(
    what: Study | Algorithm,
    federation: Federation | None = None,
    /,
    *,
    store: RunStore | str | Path | None = None,
    resume: bool | str | None = None,
    listeners: Sequence[Listener] = (),
    secret: bytes | None = None,
    progress: bool = False,
    execute: Callable[[Job], Runtime] | None = None,
    trial: str = "",
    **settings: Any,
) -> Run:
    """Train a study, or what a study would be made of, and return the run.

    `store` keeps metrics, checkpoints and the final model under a run id. `resume` names a stored run to go on with, or
    is True for the newest one of the same description that did not reach its end, or ended before the rounds asked for
    now. It must have been started with the same description and data; rounds, runtime, quorum and the like may change.
    `execute` opens what executes the clients in place of the study's runtime; `trial`: the search it is a trial of.
    """
    study = as_study(what, federation, settings)
    if study.runtime != "ray":
        _check_workers(study.workers)
    with ExitStack() as stack, computable(study.title):
        all_listeners = [*listeners, *_named(study), *_progress(progress)]
        kept = store if isinstance(store, RunStore) or store is None else stack.enter_context(RunStore(store))
        if kept is None and resume:
            raise InputError("resume needs the store in which the run is kept.")
        if (start := pinned(study.start, kept, bool(resume))) is not study.start:
            study = replace(study, init_from=start)
        config = study.stored() if kept is not None else {}
        resumed = _found(kept, study, resume, config) if kept is not None and resume else None
        plan = _plan(study, all_listeners, secret_root(kept, resumed, secret), _Origin(study, kept, resumed))

        def note(text: str) -> None:
            plan.run.note = text
            for listener in plan.listeners:
                listener.note(text)

        if execute is not None:
            opened, why = execute(plan.job), ""
        else:
            opened, why = open_runtime(
                study.runtime, plan.job, study.workers, plan.faults.deadline, plan.seen, study.address, note
            )
        stack.callback(opened.close)
        run, starting = plan.run, ExitStack()
        run.note, run.trial, run.config = why or f"runtime {opened.name}", trial, config
        checkpointer = None
        if kept is not None:
            before = kept.info(resumed).status if resumed else None
            run.id = resumed or kept.create(study.title, config, study.fingerprint(), run.summary())
            kept.claim(run.id)
            stack.callback(kept.release, run.id)
            stack.enter_context(starting).push(_NotStarted(kept, run.id, before))
            checkpointer = Checkpointer(kept, run.id, study.checkpoint)
            keep_secret(kept.folder(run.id), plan.job.secrets)
            if plan.initial is not None:
                plan.initial.keep(kept.folder(run.id))
                config["init_from"]["digest"] = plan.initial.digest
                kept.describe(run.id, config)
            opened.folder = kept.folder(run.id) / "nodes"
        memories = run.memories = Memories(checkpointer.memory_folder if checkpointer is not None else None)
        failing = stack.enter_context(ExitStack())
        failing.callback(memories.close)
        if checkpointer is not None and resumed is not None and checkpointer.restore(run, memories):
            why = f"going on after round {run.records[-1].number if run.records else 0} of run {run.id}; {run.note}"
        key, private = Key(study.seed), plan.privacy
        for listener in plan.listeners:
            listener.start(run, study.rounds)
            listener.note(why or run.note)
            if plan.initial is not None and not run.records:
                listener.note(f"starting from the weights of {plan.initial.source}")
            for text in [*_about_privacy(plan, study.rounds), *_about_attackers(plan)]:
                listener.note(text)
        starting.pop_all()
        if kept is not None and resumed is not None:
            kept.describe(resumed, config)
        drawn = key.fold("sampling") if private is None else private.sampling_key
        sampler = Sampler(plan.job.federation, plan.sampling, plan.faults, drawn)
        Loop(
            plan.job,
            run,
            opened,
            sampler,
            plan.evaluator,
            plan.faults,
            key,
            study.rounds,
            memories,
            checkpointer,
            plan.listeners,
            plan.readings,
            plan.initial.costs if plan.initial is not None else {},
        ).go()
        failing.pop_all()
        memories.rest(run.records[-1].number if run.records else 0)
    return run


@dataclass(frozen=True)
class _Prepared:
    """A study made ready: the job, the run to fill, and settings that follow from the method."""

    job: Job
    run: Run
    sampling: Sampling
    faults: Faults
    evaluator: Evaluator
    listeners: list[Listener]
    privacy: PrivacyPlan | None
    seen: int
    """Samples that local steps see in the whole run, to choose a runtime by."""
    initial: Initial | None
    """What the weights begin from, if not from the seed."""
    robust: Robust | None
    attackers: Attackers | None

    @property
    def readings(self) -> Readings:
        """What the server may read of the replies."""
        readings = Readings()
        if self.job.channels.closing is not None:
            from parley.secure.reading import SecureReadings

            readings = SecureReadings(self.privacy is not None)
        if self.attackers is not None:
            from parley.engine.attackers import AttackedReadings

            readings = AttackedReadings(self.attackers, readings)
        if self.privacy is not None:
            from parley.privacy.reading import PrivateReadings

            readings = PrivateReadings(self.privacy, readings)
        if self.robust is not None:
            from parley.robust.reading import RobustReadings

            readings = RobustReadings(self.robust, readings)
        return readings


@dataclass(frozen=True)
class _Origin:
    """Where a run's first weights are from: the run itself where it goes on, else what its study names."""

    study: Study
    store: RunStore | None
    resumed: str | None

    def initial(self, task: Task) -> Initial | None:
        """None where they follow from the seed."""
        start = self.study.start
        if start is None:
            return None
        return self._kept(start) or self._fresh(start, task)

    def _kept(self, start: Source) -> Initial | None:
        if self.store is None or self.resumed is None:
            return None
        digest = self.store.info(self.resumed).config.get("init_from", {}).get("digest")
        kept = Initial.kept(self.store.folder(self.resumed), self.resumed, digest)
        if kept is None and self.store.checkpoint(self.resumed) is not None:
            raise InputError(f"the initial weights of run '{self.resumed}' are missing, so it cannot go on.")
        file = Path(start.file) if isinstance(start, WarmStart) and start.file is not None else None
        if kept is not None and file is not None and file.is_file() and from_file(file).digest != kept.digest:
            raise InputError(
                f"run '{self.resumed}' was started from other weights than {file} has now; put the file back, or "
                "start a new run."
            )
        return kept

    def _fresh(self, start: Source, task: Task) -> Initial:
        if isinstance(start, GivenWeights):
            return Initial(start.weights, f"run '{start.run}'" if start.run else "weights given in Python")
        if start.file is not None:
            return from_file(Path(start.file))
        if start.run is not None:
            with source_store(start, self.store) as store:
                return from_run(store, start.run, start.best, task)
        assert start.algorithm is not None
        first = replace(
            self.study,
            algorithm=start.algorithm,
            rounds=start.rounds,
            init_from=None,
            data=self.study.federation(),
            evaluation=Evaluation(central=False, clients="none"),
            observers=(),
            logging=Logging(),
            # What stacks the study's method may not take another.
            runtime="auto" if self.study.runtime == "stacked" else self.study.runtime,
        )
        return from_rounds(train(first), start.rounds)


def client_job(study: Study, federation: Federation, population: int, secret: bytes) -> Job:
    """What a node needs to answer: the study's method, task and channels, with its own data and secrets alone.

    `federation` has the node's own client, not preprocessed yet; the population is that of the whole one.
    """
    algorithm = as_algorithm(study.algorithm)
    if study.preprocessing is not None:
        federation = study.preprocessing.apply(federation)
    task = make_task(federation, study.model, study.seed, study.loss, study.buffers, precision=study.precision)
    up = _stages(study)
    if study.privacy is not None:
        from parley.privacy import privacy_plan

        up = (*up, *privacy_plan(study.privacy, study.sampling, population, study.rounds).stages)
    evaluation = study.evaluation or Evaluation()
    measured = scorers(evaluation.metrics, federation.info)
    placed = replace(task, population=population).on(_device(algorithm, study.device))
    return Job(
        algorithm,
        placed,
        federation,
        Channels.of(algorithm, up),
        secret,
        measured,
        evaluation.pooled,
        evaluation.batch,
        evaluation.digits,
    )


def check_inputs(algorithm: Algorithm, federation: Federation) -> None:
    """Refuse texts, missing values and class weights that a method cannot take."""
    if (texts := federation.info.categories) and not algorithm.needs.texts:
        raise InputError(
            f"{algorithm.title} cannot take columns of texts ({', '.join(map(shown, texts[:5]))}); 'parley stats "
            "STUDY --freeze FILE' encodes them (in Python: preprocessing=statistics(study).preprocessing())."
        )
    if federation.info.class_weights and not algorithm.needs.network:
        raise InputError(
            f"{algorithm.title} does not train by a loss with class weights; leave out preprocessing.class_weights."
        )
    if federation.info.missing and not algorithm.needs.missing:
        raise InputError(
            f"{algorithm.title} cannot take missing values; fill them in ('parley stats STUDY --freeze FILE --fill "
            'median\' says by what; in Python statistics(federation).preprocessing("standard", fill="median").apply('
            "federation)), or use boosted trees."
        )


def _plan(study: Study, listeners: list[Listener], secret: bytes, origin: _Origin) -> _Prepared:
    algorithm, federation, sampling = as_algorithm(study.algorithm), study.federation(), study.sampling
    faults = study.faults or Faults()
    private = None
    if study.privacy is not None:
        from parley.privacy import privacy_plan

        private = privacy_plan(study.privacy, sampling, len(federation), study.rounds, secret)
        sampling = private.sampling
        _check_listeners(listeners)
    if sampling.scheme == "auto":
        sampling = replace(sampling, scheme=algorithm.needs.cohorts)
    if algorithm.needs.pooled:
        federation = pool(federation)
        if faults.attackers:
            raise InputError(f"{algorithm.title} pools the data, so faults.attackers does not apply; remove it.")
        sampling, faults = Sampling(), Faults(deadline=faults.deadline)  # data in one place is never absent
    check_inputs(algorithm, federation)
    task = make_task(federation, study.model, study.seed, study.loss, study.buffers, precision=study.precision)
    warn_of_scale(algorithm, task, federation, private is not None)
    task = replace(task, observe=frozenset(what for listener in listeners for what in listener.wants))
    key = Key(study.seed).fold("init")
    initial = origin.initial(task)
    if initial is not None:
        task = started(task, initial, algorithm, federation, key)
    placed = task.on(_device(algorithm, study.device))
    first = algorithm.init(task, key)
    run = Run(algorithm, task, federation, first if private is None else private.begin(first), name=study.title)
    seen = study.rounds * (sampling.size or len(federation)) * federation.size(federation.ids[0])
    evaluation = study.evaluation or Evaluation()
    measured = scorers(evaluation.metrics, federation.info)
    up = (*_stages(study), *(private.stages if private is not None else ()))
    attackers, attacked = _attackers(faults, federation, up, Key(study.seed).fold("attackers"))
    job = Job(
        algorithm, placed, attacked, Channels.of(algorithm, up), secret, measured, evaluation.pooled, evaluation.batch
    )
    if study.robust is not None:
        from parley.robust.reading import check_robust

        size = min(sampling.size or len(federation), len(federation))
        check_robust(study.robust, algorithm, job.channels, private is not None and private.central, size)
    if private is not None:
        from parley.privacy.reading import check_private

        check_private(algorithm, task, private)
    elif job.channels.closing is not None:
        from parley.secure.reading import check_summable

        check_summable(algorithm, task)
    evaluator = Evaluator(job, evaluation, Key(study.seed).fold("evaluation"))
    run.headline, run.scorers = evaluator.headline, measured
    return _Prepared(job, run, sampling, faults, evaluator, listeners, private, seen, initial, study.robust, attackers)


def _attackers(
    faults: Faults, federation: Federation, up: Sequence[Channel], key: Key
) -> tuple[Attackers | None, Federation]:
    """Who attacks, and the samples as they train on them."""
    if not faults.attackers:
        return None, federation
    from parley.engine.attackers import Attackers

    attackers = Attackers.of(faults, federation, key)
    if any(stage.last for stage in up) and faults.attack != "label-flip":
        raise InputError(
            f'faults.attack = "{faults.attack}" changes single replies, which a secure sum hides; take "label-flip".'
        )
    return attackers, attackers.flipped(federation)


def _stages(study: Study) -> tuple[Channel, ...]:
    """The channels that the study names; the norm to which adaptive clipping clips comes from `[privacy]` alone."""
    named = stages(study.channels)
    if any(channels.knows(type(stage)) and channels.name_of(type(stage)) == "adaptive-clip" for stage in named):
        raise InputError("the channel adaptive-clip is set by [privacy] with a quantile; leave it out of the channels.")
    return named


def _check_listeners(listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        if listener.wants:
            raise InputError(
                f"the listener {type(listener).__name__} looks at what single clients do, which [privacy] does not "
                "cover; leave it out."
            )


def _about_privacy(plan: _Prepared, rounds: int) -> list[str]:
    if plan.privacy is None:
        return []
    sentences = [plan.privacy.sentence(rounds)]
    if plan.initial is not None:
        sentences.append(f"epsilon does not cover {plan.initial.source}, whose weights this run starts from.")
    if plan.evaluator.owners:
        sentences.append("clients/... are measured on clients' own samples without noise; epsilon does not cover them.")
    return sentences


def _about_attackers(plan: _Prepared) -> list[str]:
    sentences = [] if plan.robust is None else [plan.robust.sentence]
    return sentences if plan.attackers is None else [*sentences, plan.attackers.sentence(len(plan.job.federation))]


def _found(store: RunStore, study: Study, resume: bool | str, config: Mapping[str, Any]) -> str:
    """The stored run to go on with, which must be the same in everything that its numbers depend on."""
    fingerprint = study.fingerprint()
    run = store.unfinished(fingerprint, study.rounds) if resume is True else store.info(str(resume)).id
    if run is None:
        raise InputError(f"there is no unfinished run of this configuration to resume{_nearest_run(store, config)}.")
    info = store.info(run)
    check_resumable(run, info.config, config)
    if info.config and info.fingerprint != fingerprint:
        raise InputError(
            f"run '{run}' was started by another version of Parley, whose rounds give other numbers (samples came in "
            "another order); finish it with that version, or start a new run."
        )
    return run


def _nearest_run(store: RunStore, config: Mapping[str, Any]) -> str:
    """The end of that sentence: in what the study's most similar run, else the store's newest, differs from the one
    asked for."""
    runs = [info for info in store.runs() if info.config]
    runs = [info for info in runs if info.name == config.get("name")] or runs[-1:]
    nearest_run = min(
        reversed(runs), key=lambda info: len(difference(essential(info.config), essential(config))), default=None
    )
    why = nearest_run and why_not(nearest_run.id, nearest_run.config, config)
    return f"; {why or 'start it without --resume'}"


@dataclass(frozen=True)
class _NotStarted:
    """Where a run is refused before its first round, by a logger for one: a new one leaves nothing, one that was to go
    on is what it was."""

    store: RunStore
    run: str
    before: str | None

    def __call__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, InputError):
            return  # as if it had been killed: what it has may be worth going on with
        if self.before is None:
            self.store.delete(self.run)
        elif self.before not in ("running", "interrupted"):
            self.store.commit(self.run, [], status=self.before)


def _named(study: Study) -> list[Listener]:
    """The listeners and loggers that the study names."""
    return [*[named[name]() for name in study.observers], *loggers(study.logging)]


def _device(algorithm: Algorithm, name: str) -> torch.device:
    if not algorithm.needs.cpu or name == "cpu":
        return resolve(name)
    if name != "auto":
        raise InputError(f'{algorithm.title} computes on the CPU alone; use device = "auto" or "cpu".')
    return resolve("cpu")


def _check_workers(workers: int | None) -> None:
    cores = available_cores()
    if workers is not None and workers > (most := max(16, 4 * cores)):
        raise InputError(
            f"runtime.workers is {workers}, but this machine has {cores} cores: at most {most} processes make sense."
        )


def _progress(wanted: bool) -> list[Listener]:
    if not wanted:
        return []
    from parley.display.progress import Progress

    return [Progress()]

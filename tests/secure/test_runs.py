"""Runs with secure sums: the numbers of runs without, whoever goes away and when, in every runtime; or a refusal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.exchange import Reply, exchange
from parley.core.errors import InputError, ParleyError, QuorumError, UnsupportedError
from parley.core.failure import Failure
from parley.core.wire import wire_size
from parley.engine.settings import Evaluation, Faults, Sampling
from parley.runtimes.inline import Inline
from parley.runtimes.protocol import Answer, Call, Job, Stamp
from parley.secure import SecureSum, secure_sum
from parley.secure.channel import GROUP, KEYS, SHARES, UNMASK
from parley.secure.reading import obstacle
from parley.statistics.method import FederatedStatistics
from parley.statistics.run import statistics_study, statistics_table
from parley.study.task import make_task

QUIET = Evaluation(every=100, clients="none", central=False)
FEDAVG = pl.FedAvg(lr=0.1, steps=2, batch=4)


@pytest.fixture(scope="module")
def table() -> pl.Federation:
    """Five clients of different sizes."""
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 4)).astype(np.float32)
    y = (x[:, :2].sum(1) > 0).astype(int)
    edges = [0, 5, 13, 22, 40, 60]
    return pl.Federation.from_arrays({f"c{i}": (x[a:b], y[a:b]) for i, (a, b) in enumerate(pairwise(edges))})


@pytest.fixture(scope="module")
def few(table: pl.Federation) -> pl.Federation:
    data = {client: table.client(client) for client in table.ids[:3]}
    return pl.Federation.from_arrays({client: (own.x, own.y) for client, own in data.items()})


class Going(Inline):
    """Clients go away when they are asked for something; every message is kept."""

    def __init__(self, job: Job, gone: Mapping[str, Sequence[str]]) -> None:
        super().__init__(job)
        self.gone, self.calls, self.answers = gone, list[Call](), list[Answer]()

    def run(self, calls: Sequence[Call], stamp: Stamp, deadline: float | None = None) -> list[Answer]:
        answers: list[Answer] = []
        for call in calls:
            if call.recipient in self.gone.get(call.context.asked, ()):
                answers.append(Failure(call.recipient, "went away."))
            else:
                answers += super().run([call], stamp, deadline)
        self.calls += calls
        self.answers += answers
        return answers


def trained(
    federation: pl.Federation, gone: Mapping[str, Sequence[str]] | None = None, algorithm: Any = FEDAVG, **settings: Any
) -> tuple[Any, Going]:
    seen: list[Going] = []

    def execute(job: Job) -> Going:
        seen.append(Going(job, gone or {}))
        return seen[0]

    given = {"model": pl.models.mlp(3), "rounds": 2, "evaluation": QUIET} | settings
    return pl.train(algorithm, federation, execute=execute, **given), seen[0]


def far(a: Any, b: Any) -> float:
    assert a.state.tensors.keys() == b.state.tensors.keys()
    return max(float((v.double() - b.state.tensors[n].double()).abs().max()) for n, v in a.state.tensors.items())


# --- the same numbers ---


@pytest.mark.parametrize(
    "algorithm",
    [FEDAVG, pl.Scaffold(lr=0.1, steps=2), pl.FedDyn(lr=0.1, steps=2), pl.FedAdam(lr=0.1, steps=2), pl.Ditto(lr=0.1)],
    ids=lambda one: one.title,
)
def test_the_run_without_to_the_rounding(table: pl.Federation, algorithm: Any):
    plain, _ = trained(table, algorithm=algorithm)
    for bits, allowed in ((24, 1e-4), (40, 1e-6)):
        secure, _ = trained(table, algorithm=algorithm, channels=secure_sum(bits))
        assert far(plain, secure) < allowed * (1000 if algorithm.title == "FedAdam" else 1)
    assert not [failure for record in secure.records for failure in record.failures]


def test_the_average_is_that_of_the_rounded_replies_bit_for_bit(table: pl.Federation):
    """Replies of a run without secure sums, cut off and averaged by hand."""
    plain, going = trained(table, rounds=1)
    secure, _ = trained(table, rounds=1, channels=secure_sum(20))
    start = make_task(table, pl.models.mlp(3), 0).initial()
    sizes = {client: table.size(client) for client in table.ids}
    weights = {client: size / sum(sizes.values()) for client, size in sizes.items()}
    most, step = max(weights.values()), 8.0 / 2**19
    for name, value in secure.state["model"].items():
        total = torch.zeros(value.shape, dtype=torch.int64)
        for client, reply in zip(table.ids, going.answers, strict=True):
            assert isinstance(reply, Reply)
            update = reply.message["update"][name].double()
            total += (update * (weights[client] / most / step)).trunc().long()
        mean = (total.double() * step * (weights["c0"] / (weights["c0"] / most))).to(value.dtype)
        assert torch.equal(value, start[name] - mean)
    assert far(plain, secure) < 1e-3


def test_histograms_are_summed_exactly(table: pl.Federation):
    trees = pl.HistogramBoosting(depth=2, min_leaf=2, bins=8)
    plain, _ = trained(table, algorithm=trees, model=None)
    secure, _ = trained(table, algorithm=trees, model=None, channels=secure_sum())
    assert far(plain, secure) == 0


def test_statistics_are_summed_exactly(table: pl.Federation):
    told = FederatedStatistics(quantiles="cells", floor=2)
    plain, _ = trained(table, algorithm=told, model=None, rounds=1)
    secure, _ = trained(table, algorithm=told, model=None, rounds=1, channels=secure_sum())
    assert far(plain, secure) == 0
    with pytest.raises(UnsupportedError, match="neighbours"):
        trained(table, algorithm=FederatedStatistics(floor=2), model=None, channels=secure_sum())


@pytest.mark.parametrize(
    "gone", [{}, {"client": ["c1"]}, {"cells": ["c3"]}, {"client": ["c1"], "cells": ["c3"]}], ids=str
)
def test_statistics_are_those_without_secure_sums_whoever_goes_away(table: pl.Federation, gone: Any):
    """Counts, moments, histograms and labels of those who stayed, exactly; with quantiles from cells of themselves."""

    def asked(**more: Any) -> pl.Statistics:
        return pl.statistics(table, floor=2, execute=lambda job: Going(job, gone), **more)

    secure, plain = asked(channels=secure_sum()), asked(quantiles="cells")
    assert secure == plain
    assert secure.contributed == 5 - len(gone.get("client", ()))
    assert set(secure.absent) == {client for clients in gone.values() for client in clients}
    late = {UNMASK: ["c2"]}
    everybody = pl.statistics(table, floor=2, channels=secure_sum(), execute=lambda job: Going(job, late))
    assert everybody.features == pl.statistics(table, floor=2, quantiles="cells", runtime="inline").features


def test_statistics_take_the_secure_sums_of_a_study_and_no_other_channel(table: pl.Federation):
    study = pl.Study(FEDAVG, table, model=pl.models.mlp(3), channels=(pl.top_k(0.1),))
    assert not statistics_study(study, FederatedStatistics()).channels
    secure = statistics_study(replace(study, channels=(pl.clip(1.0), secure_sum(20, least=3))), FederatedStatistics())
    assert secure.channels == (secure_sum(20, least=3),)
    up = ["clip(1.0)", "secure-sum(20, 8.0)"]
    assert statistics_table({"channels": {"up": up}}, FederatedStatistics())["channels"] == {"up": up[1:]}
    assert "channels" not in statistics_table({"channels": {"up": up[:1]}}, FederatedStatistics())


def test_one_shot_ridge(table: pl.Federation):
    plain, _ = trained(table, algorithm=pl.Ridge(), rounds=1)
    secure, _ = trained(table, algorithm=pl.Ridge(), rounds=1, channels=secure_sum(48, 1e4))
    assert far(plain, secure) < 1e-6


@pytest.mark.parametrize(
    "sampling",
    [Sampling(3), Sampling(4, "unbiased"), Sampling(4, "with-replacement"), Sampling(3, weights="uniform")],
    ids=str,
)
def test_any_weights(table: pl.Federation, sampling: Sampling):
    plain, _ = trained(table, cohort=sampling, rounds=3)
    secure, _ = trained(table, cohort=sampling, rounds=3, channels=secure_sum(40))
    assert far(plain, secure) < 1e-6


@pytest.mark.parametrize("runtime", ["pool", "wire", "stacked"])
def test_other_runtimes(few: pl.Federation, runtime: str):
    runs = [
        pl.train(
            pl.Scaffold(lr=0.1, steps=2),
            few,
            model=pl.models.mlp(3),
            rounds=2,
            channels=secure_sum(),
            runtime=name,
            workers=2,
            evaluation=QUIET,
            secret=bytes(16),
        )
        for name in ("inline", runtime)
    ]
    assert far(*runs) <= (1e-5 if runtime == "stacked" else 0)
    for name in ("up/bytes", "down/bytes", "cohort"):
        assert runs[0].records[-1].metrics[name] == runs[1].records[-1].metrics[name]


@pytest.mark.parametrize("runtime", ["inline", "wire"])
def test_resume_is_exact(few: pl.Federation, tmp_path: Any, runtime: str):
    settings: dict[str, Any] = {
        "model": pl.models.mlp(3),
        "channels": secure_sum(),
        "runtime": runtime,
        "workers": 1,
        "evaluation": QUIET,
        "secret": bytes(16),
        "checkpoint": 0.0,
    }
    algorithm = pl.Scaffold(lr=0.1, steps=2)
    whole = pl.train(algorithm, few, rounds=3, **settings)
    pl.train(algorithm, few, rounds=2, store=tmp_path / "runs.db", **settings)
    resumed = pl.train(algorithm, few, rounds=3, store=tmp_path / "runs.db", resume=True, **settings)
    assert far(whole, resumed) == 0


# --- who goes away ---


@pytest.mark.parametrize("stage", [KEYS, SHARES, "client"])
def test_who_goes_away_before_its_masked_reply_has_no_part(table: pl.Federation, stage: str):
    secure, _ = trained(table, {stage: ["c1"]}, algorithm=pl.Scaffold(lr=0.1, steps=2), channels=secure_sum(40))
    plain, _ = trained(table, {"client": ["c1"]}, algorithm=pl.Scaffold(lr=0.1, steps=2))
    assert far(plain, secure) < 1e-6
    assert [f.client for record in secure.records for f in record.failures] == ["c1", "c1"]
    assert secure.records[-1].metrics["cohort"].value == 4


def test_who_only_does_not_help_to_unmask_is_in_the_sum_and_remembers_it(table: pl.Federation):
    secure, _ = trained(table, {UNMASK: ["c1"]}, algorithm=pl.Scaffold(lr=0.1, steps=2), channels=secure_sum(40))
    plain, _ = trained(table, algorithm=pl.Scaffold(lr=0.1, steps=2))
    assert far(plain, secure) < 1e-6
    assert not [f for record in secure.records for f in record.failures]


def test_one_in_every_stage(table: pl.Federation):
    gone = {SHARES: ["c0"], UNMASK: ["c4"]}
    secure, _ = trained(table, gone, channels=secure_sum(40, 8.0, 0.55))
    plain, _ = trained(table, {"client": ["c0"]})
    assert far(plain, secure) < 1e-6


@pytest.mark.parametrize(
    ("gone", "sentence"),
    [
        ({KEYS: ["c0", "c1", "c2", "c3"]}, "only 1 of 5 clients told their keys, but a secure sum needs 2"),
        ({SHARES: ["c0", "c1"]}, "only 3 of 5 clients shared their keys, but a secure sum needs 4"),
        ({"client": ["c0", "c1"]}, "only 3 of 5 clients sent their masked replies, but a secure sum needs 4"),
        ({UNMASK: ["c0", "c1"]}, "only 3 of 5 clients sent their shares, but a secure sum needs 4"),
    ],
)
def test_below_the_threshold_nothing_is_read(table: pl.Federation, gone: dict[str, list[str]], sentence: str):
    going: list[Going] = []

    def execute(job: Job) -> Going:
        going.append(Going(job, gone))
        return going[0]

    with pytest.raises(QuorumError) as refused:
        pl.train(
            FEDAVG,
            table,
            model=pl.models.mlp(3),
            rounds=2,
            channels=secure_sum(),
            execute=execute,
            faults=Faults(quorum=0.1),
        )
    assert sentence in str(refused.value)
    assert "client 'c0' went away" in str(refused.value) or UNMASK in gone
    assert "nothing can be read" in str(refused.value)
    stages = [KEYS, SHARES, "client", UNMASK]
    asked = {call.context.asked for call in going[0].calls}
    assert asked == set(stages[: stages.index(next(iter(gone))) + 1])  # nobody is asked to unmask after that


def test_who_is_absent_by_chance(table: pl.Federation):
    faults = Faults(dropout=0.2, quorum=0.0)
    plain, _ = trained(table, rounds=4, faults=faults)
    secure, _ = trained(table, rounds=4, faults=faults, channels=secure_sum(40))
    assert far(plain, secure) < 1e-6


def test_a_client_with_a_number_that_is_too_large_is_left_out_and_named(table: pl.Federation):
    class Loud(pl.FedAvg):
        @exchange(like=pl.FedAvg.client)
        def client(self, task: Any, message: Any, memory: Any, data: Any, context: Any) -> Reply:
            reply = super().client(task, message, memory, data, context)
            if context.id != "c2":
                return reply
            return Reply(pl.Message({name: value + 9 for name, value in reply.message.tensors.items()}))

    secure, _ = trained(table, algorithm=Loud(lr=0.1, steps=2, batch=4), channels=secure_sum(40))
    plain, _ = trained(table, {"client": ["c2"]})
    assert far(plain, secure) < 1e-6
    assert "secure-sum takes none above 8; raise" in secure.records[0].failures[0].reason


# --- what is seen ---


def test_the_server_sees_no_reply(table: pl.Federation):
    """All that came up, looked through for what the same run sends without secure sums."""
    _, plain = trained(table, rounds=1, model=pl.models.mlp(200))
    _, secure = trained(table, rounds=1, model=pl.models.mlp(200), channels=secure_sum(), secret=bytes(16))
    replies = [one.message for one in plain.answers if isinstance(one, Reply)]
    sent = [one.message for one in secure.answers if isinstance(one, Reply)]
    masked = [message["masked"]["reals"].numpy() for message in sent if "masked" in message]
    assert len(masked) == len(replies) == 5
    for reply, own in zip(replies, masked, strict=True):
        update = torch.cat([v.flatten() for _, v in sorted(reply["update"].items())]).double().numpy()
        quantised = np.trunc(update * 2**20)
        assert abs(np.corrcoef(quantised, own.astype(float))[0, 1]) < 5 / len(own) ** 0.5
        assert (quantised == own).mean() < 0.05
        assert abs(own.astype(float)).mean() > 2**28
    scalars = [message.scalars for message in sent]
    assert not any(scalars)


def test_all_bytes_are_counted(table: pl.Federation):
    run, going = trained(table, rounds=1, channels=secure_sum())
    metrics = run.records[0].metrics
    assert metrics["up/bytes"].value == sum(wire_size(one.message) for one in going.answers if isinstance(one, Reply))
    assert metrics["down/bytes"].value == sum(wire_size(call.message) for call in going.calls)
    plain, _ = trained(table, rounds=1)
    assert metrics["up/raw/bytes"] == plain.records[0].metrics["up/bytes"]


def test_the_method_does_not_see_what_the_sum_needs(table: pl.Federation):
    seen = []

    class Curious(pl.FedAvg):
        @exchange(like=pl.FedAvg.client)
        def client(self, task: Any, message: Any, *rest: Any) -> Reply:
            seen.append(GROUP in message)
            return super().client(task, message, *rest)

    trained(table, algorithm=Curious(lr=0.1), channels=secure_sum(), rounds=1)
    assert seen == [False] * len(seen)


def test_a_client_that_was_not_asked_for_a_sum_sends_nothing(table: pl.Federation):
    _, going = trained(table, rounds=1, channels=secure_sum())
    call = next(call for call in going.calls if call.context.asked == "client")
    bare = Call(call.recipient, going.job.channels.bare(call.message), call.memory, call.context)
    (answer,) = Inline.run(going, [bare], Stamp("", 1, 0, 0))
    assert isinstance(answer, Failure)
    assert "was not asked for one" in answer.reason


# --- which methods, which channels ---

WORKS = {
    "cox", "ditto", "ema", "fedadagrad", "fedadam", "fedals", "fedals-scaffold", "feature-fedavg", "feature-fedprox",
    "fedavg", "fedavgm", "fedbabu", "feddyn", "fedprox", "fedrep", "fedsgd", "fedyogi", "fomaml", "glm",
    "histogram-boosting", "kaplan-meier", "local-only", "local-update", "maml", "metaminibatchprox", "moon", "reptile",
    "richardson-romberg", "ridge", "scaffold", "tct",
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in algorithms if algorithms[name].__module__.startswith("parley.")])
def test_every_method_is_run_or_refused_with_the_reason(name: str):
    """What a method declares is what it does: it trains on sums alone, or is refused before anybody is asked."""
    kind: Any = algorithms[name]
    more: Any = {
        "ema": {"of": pl.FedAvg(lr=0.05)},
        "cox": {"floor": 2},
        "glm": {"floor": 2},
        "kaplan-meier": {"floor": 2},
    }.get(name, {})
    method = kind(**more)
    reason = obstacle(method)
    assert (reason is None) == (name in WORKS), reason
    assert reason is None or reason.endswith(".")
    regression = name.startswith(("cox", "glm", "kaplan", "kernel-", "feature-"))
    model: Any = pl.models.features() if name.startswith("feature-") else pl.models.mlp(3)
    model = torch.nn.Linear(3, 1).double() if name.startswith("kernel-") else model
    draw, arrays = torch.Generator().manual_seed(0), {}
    for client in range(3):
        rows = 20 if name == "cox" else 6  # at coefficients where few rows count, nothing is answered
        x = torch.randn(rows, 3, generator=draw)
        y = torch.randn(rows, generator=draw) if regression else torch.arange(6) % 2
        arrays[f"c{client}"] = (x.double(), y.double()) if regression else (x, y)
    data = pl.Federation.from_arrays(arrays, public=None if regression else torch.randn(5, 3, generator=draw))
    settings: dict[str, Any] = {
        "model": model if method.needs.network else None,
        "rounds": 2,
        "runtime": "inline",
        "channels": secure_sum(40, 1e4),
        "evaluation": pl.Evaluation(every=2, clients="none", central=False),
    }
    if reason is None:
        assert pl.train(method, data, **settings).records[-1].number == 2
    else:
        with pytest.raises(UnsupportedError) as refused:
            pl.train(method, data, **settings)
        assert str(refused.value).endswith(f"cannot be run with secure sums: {reason}")


def test_refusals_come_before_training(table: pl.Federation):
    for algorithm in (pl.FedNova(lr=0.1, steps=1), pl.FedALS(lr=0.1, steps=1, budget=0.5)):
        with pytest.raises(UnsupportedError, match="cannot be run with secure sums: it reads single replies"):
            trained(table, algorithm=algorithm, channels=secure_sum())
    normalised = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    with pytest.raises(UnsupportedError, match='set buffers = "local"'):
        trained(table, model=normalised, channels=secure_sum())
    trained(
        table, model=normalised, channels=secure_sum(), buffers="local", rounds=1, algorithm=pl.FedAvg(lr=0.1, batch=0)
    )


@pytest.mark.parametrize(
    "up",
    [pl.top_k(0.1), pl.qsgd(4), pl.sign(), pl.random_k(0.2), pl.projection(0.2), pl.ef21() | pl.top_k(0.2)],
    ids=str,
)
def test_channels_that_cannot_be_summed_are_refused(table: pl.Federation, up: Any):
    with pytest.raises(InputError, match="secure-sum cannot follow"):
        trained(table, channels=up | secure_sum())
    with pytest.raises(InputError, match="secure-sum cannot follow"):
        trained(table, channels=secure_sum() | up)  # it is the last wherever it is named


def test_clipping_and_noise_come_before(table: pl.Federation):
    clipped, _ = trained(table, channels=pl.clip(0.01))
    for up in (pl.clip(0.01) | secure_sum(40), secure_sum(40) | pl.clip(0.01)):
        secure, _ = trained(table, channels=up)
        assert far(clipped, secure) < 1e-6
    # A question that rounding has changed gets other noise, so only the first round is the same.
    noisy, _ = trained(table, channels=pl.noise(0.1), secret=bytes(16), rounds=1)
    secure, _ = trained(table, channels=pl.noise(0.1) | secure_sum(40), secret=bytes(16), rounds=1)
    assert far(noisy, secure) < 1e-6


@pytest.mark.parametrize("more", [{}, {"quantile": 0.5}, {"noise": "local"}], ids=str)
def test_with_differential_privacy(more: dict[str, Any]):
    rows = np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32)
    many = pl.Federation.from_arrays({f"c{i}": (rows[4 * i : 4 * i + 4], np.arange(4) % 2) for i in range(30)})
    privacy = pl.Privacy(noise_multiplier=1.0, clip=0.1, **more)
    rounds = 1 if more.get("noise") == "local" else 3  # then rounding has changed the question, and so the noise
    runs = [
        trained(many, privacy=privacy, cohort=15, rounds=rounds, secret=bytes(range(16)), channels=up)[0]
        for up in ((), (secure_sum(40),))
    ]
    assert far(*runs) < 1e-6
    assert runs[0].last("privacy/epsilon") == runs[1].last("privacy/epsilon")
    refused = pl.FedNova(lr=0.1, steps=1)
    with pytest.raises(ParleyError, match="reads single replies"):
        trained(many, algorithm=refused, privacy=privacy, cohort=15, channels=(secure_sum(),))


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: secure_sum(1), "2 to 48 bits"), (lambda: secure_sum(24, 0.0), "positive number"),
        (lambda: secure_sum(24, 8.0, 0.5), "above 0.5"), (lambda: secure_sum(24, 8.0, 1.5), "above 0.5"),
        (lambda: secure_sum(24, 8.0, 0.7, 1), "hides nothing"),
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(made: Callable[[], SecureSum], sentence: str):
    with pytest.raises(InputError, match=sentence):
        made()


def test_the_threshold():
    for n, needed in ((2, 2), (3, 2), (4, 3), (5, 4), (10, 7), (100, 67)):
        assert secure_sum().needed(n) == needed
        assert 2 * needed > n

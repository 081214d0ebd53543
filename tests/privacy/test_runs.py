"""Private runs as a whole: every runtime, resuming, what is stored, which methods are refused and why."""

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms import algorithms
from parley.core.errors import InputError, ParleyError, StopRun
from parley.store.runs import RunStore
from parley.study.toml import load_study, study_from_dict

SECRET = b"0123456789abcdef"


@pytest.fixture(scope="module")
def digits() -> pl.Federation:
    return pl.data.digits().split(pl.Dirichlet(1.0), clients=12, seed=0)


def train(federation, algorithm=None, rounds=3, **settings):
    settings = {"privacy": pl.Privacy(noise_multiplier=1.0, clip=0.5), "model": pl.models.linear()} | settings
    return pl.train(
        algorithm or pl.FedAvg(lr=0.1, steps=2), federation, rounds=rounds, cohort=6, secret=SECRET, **settings
    )


def model(run):
    return torch.cat([value.flatten() for value in run.state["model"].values()])


PLANS = {
    "central": pl.Privacy(noise_multiplier=1.0, clip=0.5),
    "adaptive": pl.Privacy(noise_multiplier=1.0, clip=0.1, quantile=0.5),
    "local": pl.Privacy(noise_multiplier=1.0, clip=0.5, noise="local"),
}


@pytest.mark.parametrize("plan", ["adaptive", "local"])
def test_all_runtimes_agree(plan):
    """Bit for bit, stacked up to rounding: clipping, noise and cohorts are the same wherever clients run.

    Local noise follows from the question, which stacks have rounded otherwise after the first round.
    """
    rounds = 1 if plan == "local" else 2
    few = pl.data.digits().split(pl.Dirichlet(1.0), clients=4, seed=0)
    runs = {
        name: pl.train(
            pl.FedAvg(lr=0.1, steps=2),
            few,
            model=pl.models.linear(),
            rounds=rounds,
            cohort=3,
            privacy=PLANS[plan],
            secret=SECRET,
            runtime=name,
            workers=1,
        )
        for name in ("inline", "pool", "wire", "stacked")
    }
    for name in ("pool", "wire"):
        assert torch.equal(model(runs[name]), model(runs["inline"])), name
        assert runs[name].state.tensors.keys() == runs["inline"].state.tensors.keys()
    torch.testing.assert_close(model(runs["stacked"]), model(runs["inline"]), rtol=1e-3, atol=1e-5)
    epsilons = {name: run.last("privacy/epsilon") for name, run in runs.items()}
    assert len(set(epsilons.values())) == 1
    if plan == "adaptive":
        bounds = {float(run.state.tensors["privacy/bound"]) for run in runs.values()}
        assert len(bounds) == 1
        assert bounds != {0.1}


def test_noise_is_not_the_seed_s(digits):
    """Another secret gives another model; without one, no two runs are alike."""
    same, other = (
        train(digits),
        pl.train(
            pl.FedAvg(lr=0.1, steps=2),
            digits,
            model=pl.models.linear(),
            rounds=3,
            cohort=6,
            privacy=PLANS["central"],
            secret=b"f" * 16,
        ),
    )
    assert not torch.equal(model(same), model(other))
    assert torch.equal(model(same), model(train(digits)))


class StopAfter(pl.Listener):
    def __init__(self, number):
        self.number = number

    def round(self, record):
        if record.number == self.number:
            raise StopRun


@pytest.mark.parametrize("plan", PLANS)
def test_a_resumed_run_repeats_its_noise_and_is_charged_once(digits, plan, tmp_path):
    whole = train(digits, rounds=5, privacy=PLANS[plan], runtime="inline")
    store = tmp_path / "runs.db"
    first = train(digits, rounds=5, privacy=PLANS[plan], runtime="inline", store=store, listeners=[StopAfter(2)])
    assert first.status == "stopped"
    resumed = pl.train(
        pl.FedAvg(lr=0.1, steps=2),
        digits,
        model=pl.models.linear(),
        rounds=5,
        cohort=6,
        privacy=PLANS[plan],
        runtime="inline",
        store=store,
        resume=True,
    )
    assert torch.equal(model(resumed), model(whole))
    assert resumed.series("privacy/epsilon")[1].tolist() == whole.series("privacy/epsilon")[1].tolist()


def test_a_spent_budget_is_stored_and_a_resumed_run_does_not_go_on(digits, tmp_path):
    store = tmp_path / "runs.db"
    settings = {"privacy": pl.Privacy(noise_multiplier=1.0, clip=0.5, epsilon=5.0), "store": store}
    run = train(digits, rounds=20, **settings)
    spent = run.records[-1].number
    assert 0 < spent < 20
    with RunStore(store) as kept:
        info = kept.info(run.id)
        assert info.status == "stopped"
        assert "the privacy budget is spent" in info.summary["ended"]
        assert info.summary["privacy/epsilon"] == run.last("privacy/epsilon") <= 5.0
        assert info.config["privacy"]["noise_multiplier"] == 1.0
    again = train(digits, rounds=20, resume=True, **settings)
    assert again.status == "stopped"
    assert again.records[-1].number == spent
    assert torch.equal(model(again), model(run))


def test_noise_that_was_solved_for_does_not_change_under_way(digits, tmp_path):
    """More rounds would need more noise than the first rounds had."""
    settings = {"privacy": pl.Privacy(epsilon=8.0, accountant="rdp"), "store": tmp_path / "runs.db"}
    run = train(digits, rounds=2, **settings)
    assert run.status == "finished"
    assert 7.9 < run.last("privacy/epsilon") <= 8.0
    with pytest.raises(InputError, match=r"privacy\.noise_multiplier"):
        train(digits, rounds=4, resume=run.id, **settings)


def test_records_keep_nothing_of_single_clients(digits):
    run = train(digits, evaluation=pl.Evaluation(clients="none"))
    assert "train/loss" not in run.metrics()
    for record in run.records:
        assert not any(metric.clients for metric in record.metrics.values())
        assert record.metrics["privacy/epsilon"].value == pytest.approx(run.series("privacy/epsilon")[1][record.number])
    assert run.series("privacy/epsilon")[0].tolist() == [0, 1, 2, 3]
    assert run.series("privacy/epsilon")[1][0] == 0


def test_listeners_that_look_at_clients_are_refused(digits):
    with pytest.raises(InputError, match=r"Drift looks at what single clients do"):
        train(digits, listeners=[pl.Drift()])


class Notes(pl.Listener):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def test_a_run_says_what_it_promises_and_what_not(digits):
    notes = Notes()
    train(digits, listeners=[notes], evaluation=pl.Evaluation(clients="all"))
    assert any("epsilon" in text and "chance 0.5" in text and "clipped to norm 0.5" in text for text in notes.said)
    assert any("epsilon does not cover them" in text for text in notes.said)


WORKS = {
    "ditto", "ema", "fedadagrad", "fedadam", "fedals", "fedals-scaffold", "feature-fedavg", "feature-fedprox", "fedavg",
    "fedavgm", "fedbabu", "feddyn", "fedprox", "fedrep", "fedsgd", "fedyogi", "fomaml", "local-update", "maml",
    "metaminibatchprox", "moon", "reptile", "scaffold",
}  # fmt: skip
REASONS = (
    "reads single replies",
    "not drawn for the round",
    "on data in one place",
    "does not say what of its replies",
    "more than once a round",
    "the mean of absolute values",
)


@pytest.fixture(scope="module")
def numbers() -> pl.Federation:
    random = np.random.default_rng(0)
    draw = {f"c{i}": random.normal(size=(10, 4)).astype(np.float32) for i in range(12)}
    return pl.Federation.from_arrays({client: (rows[:, :3], rows[:, 3]) for client, rows in draw.items()})


@pytest.mark.parametrize("name", list(algorithms))
def test_every_method_is_private_or_refused_with_the_reason(name, digits, numbers):
    """Nothing in between: what trains has only ever read noisy averages."""
    regression = name.startswith(("cox", "glm", "kaplan", "kernel-", "feature-"))
    model = {"name": "features"} if regression else {"name": "mlp", "hidden": [8]}
    study = study_from_dict(
        {
            "rounds": 2,
            "data": {"name": "digits", "clients": 12},
            **({"model": model} if algorithms[name]().needs.network else {}),
            "cohort": {"size": 6},
            "algorithm": {"name": name},
            "privacy": {"noise_multiplier": 1.0, "clip": 0.5},
            "runtime": {"name": "inline"},
        }
    )
    data = numbers if regression else digits.with_public(digits.client(digits.ids[0]).x)
    if name in WORKS:
        run = pl.train(study, data=data, secret=SECRET)
        assert run.records[-1].number == 2
        assert run.last("privacy/epsilon") > 0
    else:
        with pytest.raises(ParleyError) as refused:
            pl.train(study, data=data)
        assert any(reason in str(refused.value) for reason in REASONS), str(refused.value)


def test_methods_that_read_single_replies_say_so_before_training(digits):
    heard = Notes()
    for algorithm in (pl.FedNova(lr=0.1, steps=1), pl.FedALS(lr=0.1, steps=1, budget=0.5)):
        with pytest.raises(ParleyError, match=r"cannot be trained with differential privacy: it reads single replies"):
            train(digits, algorithm, model=pl.models.mlp(8), listeners=[heard])
    assert not heard.said  # nothing had begun
    local = train(digits, pl.FedNova(lr=0.1, steps=1), privacy=PLANS["local"])
    assert local.records[-1].number == 3  # what clients made noisy themselves may be read


def test_statistics_of_batchnorm_are_refused(digits):
    network = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 10)
    )
    with pytest.raises(InputError, match='set buffers = "local"'):
        train(digits, model=network)
    assert train(digits, model=network, buffers="local").records[-1].number == 3


@pytest.mark.parametrize("plan", ["central", "adaptive"])
def test_compressed_replies_are_clipped_and_summed(digits, plan):
    run = train(digits, privacy=PLANS[plan], channels=pl.top_k(0.1), runtime="inline")
    assert run.total("up/bytes") < 0.3 * train(digits, runtime="inline").total("up/bytes")


def test_places_of_large_entries_cannot_be_hidden_by_local_noise(digits):
    with pytest.raises(ParleyError, match="noise cannot hide 'top-k/places'"):
        train(digits, privacy=PLANS["local"], channels=pl.top_k(0.1))


@pytest.mark.parametrize("scheme", ["without-replacement", "with-replacement", "unbiased"])
def test_cohorts_of_another_scheme_are_refused(digits, scheme):
    with pytest.raises(InputError, match=r'needs cohort.scheme = "poisson"'):
        pl.train(pl.FedAvg(), digits, model=pl.models.linear(), cohort=pl.Sampling(3, scheme), privacy=PLANS["central"])


def test_the_server_s_state_is_that_of_the_expected_cohort(digits):
    """SCAFFOLD's variates with a fixed denominator stay the mean of the clients' own, up to the noise."""
    run = train(digits, pl.Scaffold(lr=0.1, steps=2), rounds=6, privacy=pl.Privacy(noise_multiplier=1e-3, clip=1e3))
    own = [run.memory(i)["c_i"] for i in digits.ids if "c_i" in run.memory(i)]
    mean = {name: torch.stack([c[name] for c in own]).sum(0) / 12 for name in own[0]}
    for name, value in run.state["c"].items():
        assert float((value - mean[name]).norm()) < 10  # noise of 1 per number and round, over 12 clients
    assert np.isfinite(run.last("accuracy"))


def test_the_section_of_a_study_file(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        """
        rounds = 2
        [data]
        name = "digits"
        clients = 10
        [model]
        name = "linear"
        [algorithm]
        name = "fedavg"
        [cohort]
        size = 5
        [privacy]
        epsilon = 8
        delta = 1e-5
        clip = 0.5
        accountant = "rdp"
        """
    )
    study = load_study(path)
    resolved = study.resolved()
    assert resolved["cohort"] == {"size": 5, "scheme": "poisson", "weights": "uniform"}
    assert resolved["privacy"]["noise_multiplier"] > 0
    assert study_from_dict(resolved).resolved() == resolved
    assert study_from_dict(resolved).fingerprint() == study.fingerprint()
    with pytest.raises(InputError, match=r"did you mean 'epsilon'"):
        load_study(path, ["privacy.epsilonn=3"])
    assert "privacy" not in pl.train(study, rounds=1, privacy=None).metrics()
    with pytest.raises(InputError, match="privacy must be a Privacy"):
        pl.train(study, privacy=3.0)
    with pytest.raises(InputError, match=r"adaptive-clip is set by \[privacy\]"):
        pl.train(load_study(path, ['channels.up=["adaptive-clip(1.0)"]']))


@pytest.mark.parametrize("up", [pl.qsgd(4), pl.sign(), pl.ef21() | pl.top_k(0.1)], ids=str)
def test_channels_that_would_undo_the_bound_are_refused(digits, up):
    with pytest.raises(InputError, match="not what the server makes of it"):
        train(digits, channels=up)

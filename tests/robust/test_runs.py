"""Robust runs as a whole: every runtime, attackers, resuming, studies, which methods are refused and why."""

from pathlib import Path

import numpy as np
import pytest
import torch

import parley as pl
from parley.algorithms import algorithms
from parley.algorithms.exchange import Reply, exchange
from parley.core.errors import InputError, ParleyError, QuorumError, StopRun, UnsupportedError
from parley.core.failure import Failure
from parley.core.form import Form
from parley.runtimes.inline import Inline
from parley.study.toml import load_study, study_from_dict

EXAMPLE = Path(__file__).parents[2] / "examples" / "robust-digits.toml"
QUIET = pl.Evaluation(central=False, clients="none")
RULES = ("median", "trimmed-mean", "geometric-median", "krum", "multi-krum", "centred-clip")
ATTACKS = ("sign-flip", "noise", "scaled", "a-little", "label-flip")


@pytest.fixture(scope="module")
def digits():
    return pl.data.digits().split(pl.Dirichlet(1.0), clients=9, seed=0)


def train(federation, algorithm=None, rounds=2, **settings):
    settings = {"robust": pl.Robust(), "model": pl.models.linear()} | settings
    return pl.train(algorithm or pl.FedAvg(lr=0.1, steps=2), federation, rounds=rounds, **settings)


def model(run):
    return torch.cat([value.flatten() for value in run.state["model"].values()])


FORM = Form.of(update={"w": (torch.float64, (3,))}, seen={"n": (torch.int64, ())})


class Fixed(pl.OneExchange):
    """Client i sends the vector that it has, and a whole number."""

    def init(self, task, key):
        return pl.State.of(model={"w": torch.zeros(3, dtype=torch.float64)}, seen={"n": torch.tensor(0)})

    @exchange(form=lambda self, task, message: FORM, reads="mean", compress=("update",))
    def client(self, task, message, memory, data, context):
        return Reply(pl.Message.of(update={"w": data.x[0].double()}, seen={"n": torch.tensor(len(data))}))

    def aggregate(self, task, state, replies, number, key):
        moved = state["model"]["w"] + replies.mean_change("update")["w"]
        torch.testing.assert_close(replies.mean("update")["w"], replies.mean_change("update")["w"])
        return state.replace(model={"w": moved}, seen=replies.mean("seen"))


def fixed(values, robust, rounds=1, sizes=None, **settings):
    sizes = sizes or [1] * len(values)
    clients = {
        f"c{i}": (np.tile(np.float64(row), (n, 1)), np.zeros(n))
        for i, (row, n) in enumerate(zip(values, sizes, strict=True))
    }
    federation = pl.Federation.from_arrays(clients, dtype="float64")
    return pl.train(
        Fixed(),
        federation,
        model=pl.models.linear(),
        rounds=rounds,
        robust=robust,
        evaluation=QUIET,
        runtime="inline",
        **settings,
    )


VALUES = [[0.0, 1, 2], [1, 1, 5], [2, 0, 3], [1, 4, 4], [0, 2, 9], [3, 3, 3], [1, 1, 1]]


def test_the_method_gets_the_rule_s_result_whatever_sizes_clients_claim():
    run = fixed(VALUES, pl.Robust("median", f=3), sizes=[90, 1, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(run.state["model"]["w"].numpy(), np.median(VALUES, axis=0))
    assert int(run.state["seen"]["n"]) == 1  # of counters the largest would be an attacker's
    weighed = fixed(VALUES, pl.Robust("mean", f=1, bound=1e9, cap=3.0), sizes=[90, 1, 1, 1, 1, 1, 1])
    w = np.array([3.0, 1, 1, 1, 1, 1, 1]) / 9
    np.testing.assert_allclose(weighed.state["model"]["w"].numpy(), w @ np.array(VALUES))


def test_the_norm_is_of_all_that_is_sent():
    run = fixed(VALUES, pl.Robust("mean", f=1, bound=2.0))
    x = np.array(VALUES)
    wanted = (x * np.minimum(1, 2 / np.linalg.norm(x, axis=1))[:, None]).mean(0)
    np.testing.assert_allclose(run.state["model"]["w"].numpy(), wanted)


def test_clipping_goes_on_from_the_last_round(tmp_path):
    """v_1 = clip around 0, v_2 = clip around v_1, also after a stop; a round moves it by the radius at most."""
    x, v, total = np.array(VALUES), np.zeros(3), np.zeros(3)
    for _ in range(4):
        away = x - v
        v = v + (away * np.minimum(1, 0.5 / np.linalg.norm(away, axis=1))[:, None]).mean(0)
        total = total + v
    settings = pl.Robust("centred-clip", f=1, radius=0.5)
    run = fixed(VALUES, settings, rounds=4)
    np.testing.assert_allclose(run.state["model"]["w"].numpy(), total)

    class Stop(pl.Listener):
        def round(self, record):
            if record.number == 2:
                raise StopRun

    store = tmp_path / "runs.db"
    fixed(VALUES, settings, rounds=4, store=store, listeners=[Stop()])
    resumed = fixed(VALUES, settings, rounds=4, store=store, resume=True)
    assert torch.equal(resumed.state["model"]["w"], run.state["model"]["w"])


@pytest.mark.parametrize("strength", [1e300, 1e30])
@pytest.mark.parametrize("rule", RULES)
def test_huge_replies_move_no_run(rule, strength):
    """Of 1e300 as of 1e30: inside of the honest replies, or within the radius."""
    faults = pl.Faults(attackers=("c0", "c3"), attack="scaled", attack_strength=strength)
    got = fixed(VALUES, pl.Robust(rule, f=2), faults=faults).state["model"]["w"].numpy()
    assert np.linalg.norm(got) <= 12
    plain = fixed(VALUES, None, faults=faults)
    assert plain.state["model"]["w"].abs().max() > strength / 10


class Garbage(Inline):
    """A runtime whose first two clients send NaN, which the server leaves out."""

    def run(self, calls, stamp, deadline=None):
        answers = super().run(calls, stamp, deadline)
        bad = [Failure(call.recipient, "sent NaN or infinite numbers in its message.") for call in calls[:2]]
        return [*bad, *answers[2:]]


class Gone(Inline):
    """A runtime whose first two clients do not answer."""

    def run(self, calls, stamp, deadline=None):
        gone = [Failure(call.recipient, "gave no answer within 5 s.") for call in calls[:2]]
        return [*gone, *super().run(calls, stamp, deadline)[2:]]


@pytest.mark.parametrize("rule", RULES)
def test_attackers_that_send_nan_stop_nothing(rule):
    """They are two of the f that were expected, so the five others suffice; two that are silent may be honest."""
    run = fixed(VALUES, pl.Robust(rule, f=2), execute=Garbage)
    assert {failure.client for failure in run.records[0].failures} == {"c0", "c1"}
    if rule in ("krum", "multi-krum"):
        with pytest.raises(QuorumError, match=r"round 1: .*krum with f = 2 needs at least 7 replies, not 5"):
            fixed(VALUES, pl.Robust(rule, f=2), execute=Gone)
    elif rule == "median":
        with pytest.raises(QuorumError, match="are no minority of 5 replies"):
            fixed(VALUES, pl.Robust(rule, f=3), execute=Gone)


@pytest.mark.parametrize("attack", ATTACKS)
def test_all_runtimes_agree(attack):
    few = pl.data.digits().split(pl.Dirichlet(1.0), clients=5, seed=0)
    rule = RULES[ATTACKS.index(attack) % 3]
    runs = {
        name: train(
            few,
            robust=pl.Robust(rule, f=1, mixing=True),
            runtime=name,
            workers=1,
            faults=pl.Faults(attackers=0.2, attack=attack),
        )
        for name in ("inline", "pool", "wire", "stacked")
    }
    for name in ("pool", "wire"):
        assert torch.equal(model(runs[name]), model(runs["inline"])), name
    torch.testing.assert_close(model(runs["stacked"]), model(runs["inline"]), rtol=1e-3, atol=1e-5)
    assert not torch.equal(model(runs["inline"]), model(train(few, robust=pl.Robust(rule, f=1, mixing=True))))
    assert len({tuple(run.records[0].metrics["attackers"].clients) for run in runs.values()}) == 1


class Notes(pl.Listener):
    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


def test_attackers_are_told_and_stay_the_same(digits):
    heard = Notes()
    run = train(digits, rounds=3, cohort=5, faults=pl.Faults(attackers=4 / 9), listeners=[heard])
    (told,) = [text for text in heard.said if "clients attack" in text]
    assert "robust folding by median, for at most 1 attackers in a cohort; the same weight for all." in heard.said
    assert told.startswith("4 of 9 clients attack (simulated; sign-flip, strength 1): '")
    who = {client for record in run.records for client in record.metrics["attackers"].clients}
    assert all(f"'{client}'" in told for client in who)
    for record in run.records:
        assert record.metrics["attackers"].value == len(record.metrics["attackers"].clients) <= 4
    other = Notes()
    train(digits, faults=pl.Faults(attackers=4 / 9), seed=1, listeners=[other])
    assert told not in other.said
    plain = train(digits)
    assert "attackers" not in plain.records[0].metrics


def test_what_each_attack_sends():
    """Closed forms, read through the mean of a run in which c0 attacks."""
    x = np.array(VALUES)

    def lie(attack, **settings):
        run = fixed(
            VALUES,
            None,
            faults=pl.Faults(attackers=("c0",), attack=attack, **settings),
            cohort=pl.Sampling(weights="uniform"),
        )
        return run.state["model"]["w"].numpy() * len(x) - x[1:].sum(0)

    np.testing.assert_allclose(lie("sign-flip", attack_strength=3.0), -3 * x[0], atol=1e-9)
    np.testing.assert_allclose(lie("scaled"), 10 * x[0], atol=1e-9)
    np.testing.assert_allclose(lie("a-little"), x[1:].mean(0) - 1.5 * x[1:].std(0), atol=1e-9)
    assert 1 < np.linalg.norm(lie("noise")) < 100
    assert not np.allclose(lie("noise"), lie("noise", attack_strength=9.0))


def test_attackers_that_flip_labels_train_on_others(digits):
    """The attacker's update is that of a client whose classes are turned round, and nobody else's changes."""
    seen = {}

    class Heard(pl.Listener):
        def exchange(self, number, index, asked, sent, replies):
            seen.update({client: reply["update"]["1.weight"] for client, reply in replies.items()})

    def updates(federation, **settings):
        seen.clear()
        pl.train(
            pl.FedAvg(lr=0.1, steps=1, batch=0),
            federation,
            model=pl.models.linear(),
            rounds=1,
            runtime="inline",
            listeners=[Heard()],
            **settings,
        )
        return dict(seen)

    flipped = updates(digits, faults=pl.Faults(attackers=("3",), attack="label-flip"))
    by_hand = pl.Federation.from_arrays(
        {i: (digits.client(i).x, 9 - digits.client(i).y if i == "3" else digits.client(i).y) for i in digits.ids},
        test=digits.test,
    )
    for client, update in updates(by_hand).items():
        torch.testing.assert_close(flipped[client], update)
    honest = updates(digits)
    assert [client for client in honest if not torch.equal(honest[client], flipped[client])] == ["3"]


def test_client_momentum_runs_through_robust_rounds(digits):
    kept = pl.FedAvg(lr=0.05, steps=2, options={"momentum": 0.9}, keep=True)
    fresh = pl.FedAvg(lr=0.05, steps=2, options={"momentum": 0.9})
    assert not torch.equal(model(train(digits, kept, rounds=3)), model(train(digits, fresh, rounds=3)))


@pytest.mark.parametrize("rule", ["median", "centred-clip"])
@pytest.mark.parametrize("name", list(algorithms))
def test_every_method_is_robust_or_refused_with_the_reason(name, rule, digits):
    reads = {each.reads for each in algorithms[name]().exchanges()}
    regression = name.startswith(("cox", "glm", "kaplan-meier", "kernel-", "feature-"))
    net = {"name": "features"} if regression else {"name": "mlp", "hidden": [8]}
    study = study_from_dict(
        {
            "rounds": 2,
            "data": {"name": "digits", "clients": 9},
            **({"model": net} if algorithms[name]().needs.network else {}),
            "algorithm": {"name": name},
            "robust": {"rule": rule},
            "runtime": {"name": "inline"},
        }
    )
    random = np.random.default_rng(0)
    numbers = {str(i): (random.normal(size=(8, 3)), random.normal(size=8)) for i in range(9)}
    data = (
        pl.Federation.from_arrays(numbers, test=numbers["0"])
        if regression
        else digits.with_public(digits.client("0").x)
    )
    if "mean" in reads and reads <= {"mean", "nothing"} and not algorithms[name]().needs.pooled:
        assert pl.train(study, data=data).records[-1].number == 2
        return
    with pytest.raises(ParleyError) as refused:
        pl.train(study, data=data)
    reason = "cannot be folded robustly: it "
    # Some refuse the data first, with or without [robust].
    assert reason in str(refused.value) or name in ("cox", "glm", "kaplan-meier"), str(refused.value)


def test_refusals(digits):
    for robust, settings, sentence in (
        (pl.Robust(), {"channels": pl.secure_sum()}, "of a secure sum no single reply is known"),
        (pl.Robust("krum", f=4), {}, "krum with f = 4 needs at least 11 replies, not 9"),
        (pl.Robust("median", f=2), {"cohort": 4}, "2 attackers are no minority of 4 replies"),
        (pl.Robust("multi-krum", f=2, m=6), {}, "takes at most m = 5, not 6"),
        (pl.Robust("trimmed-mean", f=5), {}, "needs at least 11 replies"),
    ):
        with pytest.raises((InputError, UnsupportedError), match=sentence):
            train(digits, robust=robust, **settings)
    for algorithm, sentence in ((pl.FedNova(lr=0.1, steps=1), "it reads single replies"),):
        with pytest.raises(UnsupportedError, match=f"FedNova cannot be folded robustly: {sentence}"):
            train(digits, algorithm)
    with pytest.raises(InputError, match="robust must be a Robust, not a str"):
        train(digits, robust="median")


def test_not_with_central_noise_but_with_local(digits):
    pytest.importorskip("dp_accounting")
    private = pl.Privacy(noise_multiplier=0.1, clip=0.5)
    with pytest.raises(UnsupportedError, match="a rule has another sensitivity"):
        train(digits, privacy=private)
    local = train(digits, privacy=pl.Privacy(noise_multiplier=0.1, clip=0.5, noise="local"))
    assert local.records[-1].number == 2


def test_attackers_that_make_no_sense_are_refused(digits):
    for faults, sentence in (
        ({"attackers": 1.0}, r"faults.attackers must lie in \[0, 1\)"),
        ({"attackers": ("nobody",)}, "names 'nobody', which is no client"),
        ({"attackers": 0.01}, "of 9 clients selects no client"),
        ({"attackers": 0.5, "attack": "kindness"}, "faults.attack must be"),
        ({"attackers": 0.5, "attack": "label-flip", "attack_strength": 2.0}, "label-flip has none"),
    ):
        with pytest.raises(InputError, match=sentence):
            train(digits, faults=pl.Faults(**faults))
    with pytest.raises(InputError, match="which a secure sum hides"):
        train(digits, robust=None, channels=pl.secure_sum(), faults=pl.Faults(attackers=0.3))
    hidden = train(
        digits,
        robust=None,
        channels=pl.secure_sum(),
        faults=pl.Faults(attackers=0.3, attack="label-flip"),
        runtime="inline",
    )
    assert hidden.records[-1].number == 2
    with pytest.raises(InputError, match="pools the data, so faults"):
        train(digits, pl.Centralised(), robust=None, faults=pl.Faults(attackers=0.3))


def test_a_study_and_back():
    study = load_study(EXAMPLE, ["robust.rule=geometric-median", "robust.cap=2", "robust.f=5"])
    assert study.robust == pl.Robust("geometric-median", f=5, cap=2.0)
    assert study.faults.attackers == 0.2
    again = study_from_dict(study.resolved())
    assert (again.robust, again.faults) == (study.robust, study.faults)
    named = load_study(EXAMPLE, ['faults.attackers=["1", "2"]'])
    assert named.faults.attackers == ("1", "2")
    assert study_from_dict(named.resolved()).faults == named.faults
    assert load_study(EXAMPLE).fingerprint() != load_study(EXAMPLE, ["robust.f=2"]).fingerprint()
    with pytest.raises(InputError, match="rul"):
        load_study(EXAMPLE, ["robust.rul=median"])


def test_the_example_learns_what_the_mean_does_not():
    study = load_study(EXAMPLE)
    robust, plain = pl.train(study), pl.train(study, robust=None)
    assert robust.last() > 0.8
    assert plain.last() < 0.3

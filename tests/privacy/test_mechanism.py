"""What a private run really draws, clips, adds and charges, measured on runs; a planted mistake in each is found."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

import parley as pl
from parley.core.context import Secrets
from parley.core.errors import UnsupportedError
from parley.core.form import Form
from parley.core.gaussian import gaussian
from parley.core.key import Key
from parley.core.message import Message
from parley.core.tree import norm
from parley.engine.sampling import Sampler
from parley.engine.settings import Faults, Sampling
from parley.privacy import replies as private
from parley.privacy.accounting import Mechanism
from parley.privacy.clip import Clip
from parley.privacy.plan import PrivacyPlan, privacy_plan
from parley.privacy.replies import PrivateReplies, Release


class Heard(pl.Listener):
    """What clients sent, round by round."""

    def __init__(self):
        self.rounds = {}

    def exchange(self, number, index, asked, sent, replies):
        self.rounds[number] = dict(replies)


def vector(run):
    return run.state["model"]["w"].double()


# --- what must hold, as checks that a planted mistake must fail ---


def check_cohorts_are_poisson(canaries):
    """Sizes are binomial, clients come independently of each other."""
    heard = Heard()
    canaries(40, 40, rounds=100, cohort=10, noise_multiplier=1.0, listeners=[heard])
    came = np.array([[f"c{i:05d}" in heard.rounds.get(n, {}) for i in range(40)] for n in range(1, 101)], dtype=float)
    assert abs(came.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / came.size)
    sizes = came.sum(1)
    assert stats.chi2.ppf(1e-4, 99) < 99 * sizes.var(ddof=1) / (40 * 0.25 * 0.75) < stats.chi2.ppf(1 - 1e-4, 99)


def check_cohorts_are_secret(canaries):
    """The seed does not tell who takes part: another secret, other cohorts; the same secret, the same."""
    drawn = []
    for secret, seed in ((b"a" * 16, 0), (b"b" * 16, 0), (b"a" * 16, 1)):
        heard = Heard()
        canaries(40, 40, rounds=3, cohort=20, noise_multiplier=1.0, secret=secret, seed=seed, listeners=[heard])
        drawn.append([tuple(heard.rounds[n]) for n in (1, 2, 3)])
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


def check_clients_clip(canaries):
    """Nothing that a client sends is longer than the bound."""
    heard = Heard()
    canaries(10, 10, noise_multiplier=1.0, clip=0.3, listeners=[heard])
    lengths = [float(norm(message.tensors)) for message in heard.rounds[1].values()]
    assert len(lengths) == 10
    assert max(lengths) <= 0.3
    assert min(lengths) > 0.2999


def check_the_server_clips():
    """Whatever arrives, one reply moves the sum by no more than the bound, all its trees together."""
    form = Form.of(update={"w": (torch.float32, (3,))}, c={"w": (torch.float32, (3,))})
    long = Message.of(update={"w": torch.full((3,), 50.0)}, c={"w": torch.full((3,), -50.0)})
    release = Release(0.5, 1.0, 4.0, Secrets(bytes(16)))
    with_it, without = PrivateReplies({"a": long}, form, release), PrivateReplies({}, form, release)
    apart = {g: with_it.mean_change(g)["w"] - without.mean_change(g)["w"] for g in ("update", "c")}
    assert float(norm(apart)) * 4.0 == pytest.approx(0.5, rel=1e-5)


def check_the_variance_of_the_noise(canaries):
    """On coordinates that no client touches the sum has variance (z C)^2, and it is normal."""
    run = canaries(20, 20_000, cohort=10, noise_multiplier=1.5, clip=0.4)
    noise = (vector(run) * 10)[20:] / (1.5 * 0.4)
    count = len(noise)
    assert stats.chi2.ppf(1e-5, count) < float(noise.square().sum()) < stats.chi2.ppf(1 - 1e-5, count)
    assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-4


def check_noise_is_never_the_same(canaries):
    """Rounds, and secrets with the same seed, have noise that is not correlated."""
    ones = [vector(canaries(3, 4000, rounds=n, noise_multiplier=1.0))[3:] for n in (1, 2, 3)]
    other = vector(canaries(3, 4000, noise_multiplier=1.0, secret=b"t" * 16))[3:]
    noises = torch.stack([ones[0], ones[1] - ones[0], ones[2] - ones[1], other])
    correlations = torch.corrcoef(noises) - torch.eye(4, dtype=torch.float64)
    assert float(correlations.abs().max()) < 5 / math.sqrt(4000)
    assert torch.equal(ones[0], vector(canaries(3, 4000, noise_multiplier=1.0, seed=7))[3:])  # not from the seed


def check_the_denominator_is_fixed(canaries):
    """A clipped client moves its coordinate by C / m on average, however many answered."""
    heard = Heard()
    run = canaries(
        400,
        400,
        cohort=200,
        noise_multiplier=0.05,
        clip=1.0,
        listeners=[heard],
        faults=pl.Faults(dropout=0.3, quorum=0),
    )
    came = torch.tensor([f"c{i:05d}" in heard.rounds[1] for i in range(400)])
    assert 100 < int(came.sum()) < 180
    assert float(vector(run)[came].mean()) * 200 == pytest.approx(1.0, abs=5 * 0.05 / math.sqrt(100))


def check_the_price(canaries):
    """The epsilon of every record is that of the noise and the cohorts that the run really had."""
    run = canaries(50, 60, rounds=4, cohort=10, noise_multiplier=1.2)
    for record in run.records:
        exact = Mechanism(10 / 50, 1.2, 1e-5).epsilon(record.number)
        assert record.metrics["privacy/epsilon"].value == pytest.approx(exact, rel=1e-9)
    assert [record.number for record in run.records] == [1, 2, 3, 4]


def check_the_budget(canaries):
    """A round that would exceed the budget is not begun, and the run says so."""
    mechanism = Mechanism(10 / 50, 1.2, 1e-5)
    run = canaries(50, 60, rounds=8, cohort=10, noise_multiplier=1.2, epsilon=mechanism.epsilon(3) + 1e-6)
    assert run.status == "stopped"
    assert run.records[-1].number == 3
    assert "the privacy budget is spent: round 4 would bring epsilon to" in run.summary()["ended"]
    assert run.last("privacy/epsilon") <= mechanism.epsilon(3) + 1e-6


RUN_CHECKS = {
    check.__name__: check
    for check in (
        check_cohorts_are_poisson,
        check_cohorts_are_secret,
        check_clients_clip,
        check_the_variance_of_the_noise,
        check_noise_is_never_the_same,
        check_the_denominator_is_fixed,
        check_the_price,
        check_the_budget,
    )
}


@pytest.mark.parametrize("name", RUN_CHECKS)
def test_a_private_run(name, canaries):
    RUN_CHECKS[name](canaries)


def test_the_server_clips():
    check_the_server_clips()


# --- planted mistakes ---


def plant_fixed_cohorts(patch):
    def fixed(self, random, population, size):
        key = Key(int(random.integers(2**62)))
        drawn = Sampler(self.federation, Sampling(size, "unbiased", "uniform"), self.faults, key).draw(1)
        return replace(drawn, expected=float(size))

    patch.setattr(Sampler, "_poisson", fixed)


def plant_the_number_that_answered(patch):
    begin = PrivateReplies.__init__

    def counted(self, replies, form, release, total=None):
        begin(self, replies, form, replace(release, expected=float(max(len(replies), 1))), total)

    patch.setattr(PrivateReplies, "__init__", counted)


PLANTED = {
    "sampling: cohorts of a fixed size": (plant_fixed_cohorts, "check_cohorts_are_poisson"),
    "sampling: cohorts from the study's seed": (
        lambda patch: patch.setattr(PrivacyPlan, "sampling_key", Key(0)),
        "check_cohorts_are_secret",
    ),
    "clipping: clients do not clip": (
        lambda patch: patch.setattr(Clip, "send", lambda self, message, context, trees: message),
        "check_clients_clip",
    ),
    "noise: half of what is accounted for": (
        lambda patch: patch.setattr(PrivacyPlan, "sum_multiplier", property(lambda self: self.multiplier / 2)),
        "check_the_variance_of_the_noise",
    ),
    "noise: the same in every round": (
        lambda patch: patch.setattr(PrivacyPlan, "_secrets", lambda self, number: Secrets(self.secret)),
        "check_noise_is_never_the_same",
    ),
    "noise: from the study's seed": (
        lambda patch: patch.setattr(PrivacyPlan, "_secrets", lambda self, number: Secrets(bytes(16), (number,))),
        "check_noise_is_never_the_same",
    ),
    "denominator: as many as answered": (
        plant_the_number_that_answered,
        "check_the_denominator_is_fixed",
    ),
    "accounting: a smaller rate": (
        lambda patch: patch.setattr(PrivacyPlan, "rate", property(lambda self: 0.5 * self.size / self.population)),
        "check_the_price",
    ),
    "accounting: more noise than was added": (
        lambda patch: patch.setattr(
            PrivacyPlan, "mechanism", property(lambda self: Mechanism(self.rate, 1.3 * self.multiplier, 1e-5))
        ),
        "check_the_price",
    ),
    "accounting: the budget is looked at after the round": (
        lambda patch: patch.setattr(
            PrivacyPlan, "exhausted",
            lambda self, number, exhausted=PrivacyPlan.exhausted: exhausted(self, number - 1),
        ),
        "check_the_budget",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake, canaries, monkeypatch):
    plant, check = PLANTED[mistake]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        RUN_CHECKS[check](canaries)


def test_a_server_that_does_not_clip_is_found(monkeypatch):
    monkeypatch.setattr(private, "norm", lambda tensors: torch.tensor(0.0))
    with pytest.raises(AssertionError):
        check_the_server_clips()


# --- what the method may read ---


def test_single_replies_cannot_be_read():
    form = Form.of(update={"w": (torch.float32, (2,))})
    replies = PrivateReplies(
        {"a": Message.of(update={"w": torch.ones(2)})}, form, Release(1.0, 1.0, 5.0, Secrets(b"x"))
    )
    for reading in (
        lambda: replies["a"],
        lambda: list(replies),
        lambda: len(replies),
        lambda: replies.weights,
        lambda: replies.messages,
        lambda: replies.reweighted({}),
        lambda: dict(replies),
        lambda: "a" in replies,
    ):
        with pytest.raises(UnsupportedError, match="only their mean can be read"):
            reading()
    assert replies.count == 5.0
    assert replies.mean_change("nothing", optional=True) == {}
    assert torch.equal(
        replies.mean_change("update")["w"], replies.mean_change("update")["w"]
    )  # asking twice gains nothing


def test_a_round_without_clients_releases_noise_like_any_other(canaries):
    """Or a model that stays the same would tell that nobody came."""
    heard = Heard()
    run = canaries(3, 2000, rounds=30, cohort=1, noise_multiplier=1.0, clip=1.0, listeners=[heard])
    assert any(not heard.rounds[number] for number in range(1, 31))
    noise = vector(run)[3:]
    assert stats.chi2.ppf(1e-5, 1997) < float(noise.square().sum()) / 30 < stats.chi2.ppf(1 - 1e-5, 1997)


def test_secret_numbers_are_normal_and_differ_by_place():
    one = gaussian(Secrets(b"k" * 16, (1,)), "a", (100_001,)).numpy()
    assert stats.kstest(one, "norm").pvalue > 1e-4
    assert np.array_equal(one, gaussian(Secrets(b"k" * 16, (1,)), "a", (100_001,)).numpy())
    for other in (Secrets(b"k" * 16, (2,)), Secrets(b"l" * 16, (1,))):
        assert abs(np.corrcoef(one, gaussian(other, "a", (100_001,)).numpy())[0, 1]) < 0.02
    assert gaussian(Secrets(b"k"), "a", ()).shape == ()
    assert gaussian(Secrets(b"k"), "a", (0, 3)).shape == (0, 3)


def test_the_clipping_norm_follows_the_quantile(canaries):
    """All norms are 10, so the bound goes there from below and from above."""
    for first, relation in ((0.5, 1), (200.0, -1)):
        run = canaries(200, 200, rounds=40, cohort=100, noise_multiplier=0.5, clip=first, quantile=0.5, count_noise=2.0)
        bound = float(run.state.tensors["privacy/bound"])
        assert bound == pytest.approx(10.0, rel=0.15)
        assert (bound - first) * relation > 0


def test_the_count_of_clients_within_the_bound_is_noisy():
    plan = privacy_plan(pl.Privacy(noise_multiplier=1.0, quantile=0.5, count_noise=3.0), Sampling(100), 1000, 10)
    plans = [replace(plan, secret=number.to_bytes(16, "little")) for number in range(2000)]
    total = 70 * 0.5 - 30 * 0.5  # seventy within, thirty beyond
    logs = -np.log([one.next_bound(1.0, total, 1) for one in plans]) / 0.2 + 0.5  # the noisy shares
    assert logs.mean() == pytest.approx(0.7, abs=5 * 0.03 / math.sqrt(2000))
    assert logs.std() == pytest.approx(0.03, rel=0.1)


def test_poisson_cohorts_without_privacy_are_unbiased():
    sizes = {f"c{i}": (np.ones((n, 1)), np.ones(n)) for i, n in enumerate((1, 2, 5, 10))}
    sampler = Sampler(pl.Federation.from_arrays(sizes), Sampling(2, "poisson"), Faults(), Key(0))
    total = np.zeros(4)
    for number in range(4000):
        cohort = sampler.draw(number)
        for client, weight in zip(cohort.ids, cohort.weights, strict=True):
            total[int(client[1])] += weight / 4000
    np.testing.assert_allclose(total, np.array([1, 2, 5, 10]) / 18, rtol=0.1)

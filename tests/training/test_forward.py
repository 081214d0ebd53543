"""Forward randomness, running statistics, predictors and losses."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from parley.core.key import Key
from parley.data import ClientData
from parley.training.batches import Work
from parley.training.local import train
from parley.training.losses import IGNORE, losses
from parley.training.optimizers import LocalOptimizer
from parley.training.randomness import forward_randomness
from parley.training.task import Task


class ByHand(nn.Module):
    """Dropout that no layer shows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.dropout(x, 0.5, self.training))


MODELS = {"layer": lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 3)), "by hand": ByHand}


@pytest.mark.parametrize("model", MODELS)
def test_dropout_depends_on_the_key_alone(seeded, task_of, clients, model: str):
    task = task_of(seeded(MODELS[model]), "cross-entropy", (6,), 3)
    (data,) = clients((20,), (6,), 3, "cross-entropy")

    def trained(key: Key) -> Tensor:
        result = train(task, task.initial(), data, key, work=Work(steps=3), optimizer=LocalOptimizer(lr=0.5))
        return torch.cat([value.flatten() for value in result.parameters.values()])

    before = torch.random.get_rng_state()
    first = trained(Key(0))
    assert torch.equal(before, torch.random.get_rng_state())
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(99)
        assert torch.equal(first, trained(Key(0)))
    assert not torch.equal(first, trained(Key(1)))  # full batches: only dropout can differ


def test_forward_randomness_is_forked_and_can_be_off():
    state = torch.random.get_rng_state()
    with forward_randomness(Key(1)):
        first = torch.rand(3)
    with forward_randomness(Key(1)):
        assert torch.equal(first, torch.rand(3))
    with pytest.raises(ValueError), forward_randomness(Key(2)):
        raise ValueError(torch.rand(1))
    with forward_randomness(Key(1), active=False):
        pass
    assert torch.equal(state, torch.random.get_rng_state())


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_running_statistics_are_trained_on_a_copy(seeded, task_of, clients):
    task = task_of(seeded(norm_net), "cross-entropy", (6,), 3)
    (data,) = clients((20,), (6,), 3, "cross-entropy")
    buffers = task.initial_buffers()
    result = train(
        task, task.initial(), data, Key(0), work=Work(steps=2), optimizer=LocalOptimizer(lr=0.0), buffers=buffers
    )
    hidden = task.module[0](data.x).detach()
    mean, variance = hidden.mean(0), hidden.var(0)
    torch.testing.assert_close(result.buffers["1.running_mean"], mean * (1 - 0.9**2), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        result.buffers["1.running_var"], variance + 0.81 * (1 - variance), rtol=1e-12, atol=1e-12
    )
    assert result.buffers["1.num_batches_tracked"] == 2
    for own in (buffers, task.initial_buffers()):
        assert own["1.num_batches_tracked"] == 0
        assert not own["1.running_mean"].any()


def test_predictors_use_the_statistics_they_are_given(seeded, task_of, clients):
    task = task_of(seeded(norm_net), "cross-entropy", (6,), 3)
    (data,) = clients((20,), (6,), 3, "cross-entropy")
    local = Task(task.module, task.loss, task.info, 4, "local")
    buffers = task.initial_buffers()
    buffers["1.running_mean"] = torch.full((4,), 2.0, dtype=torch.float64)
    with torch.no_grad():
        hidden = task.module[0](data.x)
        normalised = (hidden - hidden.mean(0)) / (hidden.var(0, correction=0) + 1e-5).sqrt()
        shifted = (hidden - 2.0) / (1 + 1e-5) ** 0.5
        cases = [
            (local.predictor(task.initial()), normalised),  # statistics of the batch
            (local.predictor(task.initial(), buffers), shifted),
            (task.predictor(task.initial(), buffers), shifted),
        ]
        for training in (True, False):
            task.module.train(training)
            for predict, inner in cases:
                torch.testing.assert_close(predict(data.x), task.module[2](inner), rtol=1e-10, atol=1e-10)
                assert task.module.training is training


def test_losses_by_hand():
    random = Key(0).torch()
    outputs, classes = torch.randn(4, 3, generator=random), torch.tensor([0, 2, 1, 1])
    expected = -torch.log_softmax(outputs, 1)[torch.arange(4), classes]
    torch.testing.assert_close(losses["cross-entropy"](outputs, classes), expected)
    targets = torch.randn(4, 3, generator=random)
    torch.testing.assert_close(losses["half-squares"](outputs, targets), ((outputs - targets) ** 2).sum(1) / 2)
    torch.testing.assert_close(losses["mse"](outputs, targets), ((outputs - targets) ** 2).mean(1))
    torch.testing.assert_close(losses["mse"](outputs[:, :1], targets[:, 0]), (outputs[:, 0] - targets[:, 0]) ** 2)


def test_padded_positions_do_not_count():
    outputs = torch.randn(2, 3, 5, generator=Key(0).torch())  # [B, C, T], as torch's own cross-entropy takes it
    targets = torch.tensor([[0, 2, IGNORE, IGNORE, IGNORE], [1, 1, 0, 2, IGNORE]])
    per_sample = losses["cross-entropy"](outputs, targets)
    for row, length in ((0, 2), (1, 4)):
        each = F.cross_entropy(outputs[row, :, :length].T, targets[row, :length])
        torch.testing.assert_close(per_sample[row], each)
    nothing = torch.full((1, 4), IGNORE)
    assert losses["cross-entropy"](torch.randn(1, 3, 4, generator=Key(1).torch()), nothing) == 0


def test_client_data_of_unequal_lengths_are_refused():
    with pytest.raises(Exception, match="one row per sample"):
        ClientData(torch.ones(3, 2), torch.ones(2))

"""Buffer policies and evaluation with batch statistics."""

from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.func import functional_call

from parley import models
from parley.core.errors import InputError
from parley.core.key import Key


def batchnorm() -> nn.Module:
    return models.build_module(models.resnet20(), (1, 8, 8), 3, Key(0))


@pytest.mark.parametrize("policy", ["average", "local"])
def test_policies_that_accept_batchnorm(policy: models.BufferPolicy) -> None:
    models.check_policy(batchnorm(), policy)


def test_refuse_names_the_buffer_and_the_way_out() -> None:
    with pytest.raises(InputError, match=r"'stem.norm.running_mean' .* 'refuse'.* 'average' or 'local'"):
        models.check_policy(batchnorm(), "refuse")
    models.check_policy(models.build_module(models.resnet20(norm="group"), (1, 8, 8), 3, Key(0)), "refuse")


def test_unknown_policy() -> None:
    with pytest.raises(InputError, match="did you mean 'average'"):
        models.check_policy(batchnorm(), "averge")


def test_buffer_names_partition_the_state_dict() -> None:
    module = batchnorm()
    floats, ints = models.float_buffers(module), models.int_buffers(module)
    assert len(floats) == 2 * 21  # 19 convolutions on the main path and 2 shortcuts
    assert len(ints) == 21
    assert all(name.endswith("num_batches_tracked") for name in ints)
    parameters = {name for name, _ in module.named_parameters()}
    assert parameters | set(floats) | set(ints) == set(module.state_dict())


def test_buffers_that_are_not_saved_are_not_named() -> None:
    module = nn.Module()
    module.register_buffer("positions", torch.zeros(3), persistent=False)
    assert models.float_buffers(module) == ()


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_equal_training_mode_and_change_nothing(training: bool) -> None:
    module = batchnorm()
    x = 3 + 2 * torch.randn(16, 1, 8, 8, generator=Key(1).torch())
    expected = batchnorm().train()(x)
    module.train(training)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with models.batch_statistics(module):
        torch.testing.assert_close(module(x), expected)
        torch.testing.assert_close(functional_call(module, before, (x,)), expected)
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert module.training is training


def test_afterwards_running_statistics_count_again() -> None:
    module = nn.BatchNorm1d(2).eval()
    x = torch.tensor([[1.0, 2.0], [3.0, 6.0]])
    before = module(x)
    with suppress(KeyError), models.batch_statistics(module):
        torch.testing.assert_close(module(x), torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), rtol=0, atol=1e-4)
        raise KeyError
    assert torch.equal(module(x), before)
    module.train()(x)
    assert module.num_batches_tracked == 1


def test_instance_norm_with_running_statistics() -> None:
    module = nn.InstanceNorm1d(2, track_running_stats=True).eval()
    x = torch.randn(3, 2, 5, generator=Key(2).torch()) * 4
    with models.batch_statistics(module):
        torch.testing.assert_close(module(x), nn.InstanceNorm1d(2)(x))
    assert not torch.allclose(module(x), nn.InstanceNorm1d(2)(x))

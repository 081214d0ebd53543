"""Building modules: determinism in the key, isolation from the global generator, and clear refusals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from parley import models
from parley.core.errors import InputError
from parley.core.key import Key

SPECS = {
    "linear": (models.linear(), (1, 8, 8)),
    "mlp": (models.mlp(5, 4), (1, 8, 8)),
    "cnn001": (models.cnn001(), (1, 10, 12)),
    "cnn002": (models.cnn002(), (2, 17, 16)),
    "cifar10-cnn": (models.cifar10_cnn(), (3, 9, 8)),
    "resnet18": (models.resnet18(groups=4), (1, 8, 8)),
    "resnet20": (models.resnet20(), (1, 8, 8)),
    "lstm": (models.lstm(hidden=6), (7,)),
    "text-bag": (models.text_bag(vocabulary=20, embedding=4), (7,)),
}


def sample(shape: tuple[int, ...], count: int) -> torch.Tensor:
    generator = Key(9).torch()
    if len(shape) == 1:
        return torch.randint(0, 3, (count, *shape), generator=generator)
    return torch.randn((count, *shape), generator=generator)


def test_every_registered_model_is_covered_here() -> None:
    elsewhere = {"features", "hf-causal", "hf-classifier"}  # test_feature_model.py, test_hugging_face.py
    assert set(models.models) - elsewhere == set(SPECS)
    for name, (spec, _) in SPECS.items():
        assert models.models[name] is type(spec)


@pytest.mark.parametrize("name", SPECS)
def test_output_shape_and_dtype(name: str) -> None:
    spec, shape = SPECS[name]
    module = models.build_module(spec, shape, 3, Key(0)).eval()
    output = module(sample(shape, 5))
    assert output.shape == (5, 3)
    assert output.dtype == torch.float32


@pytest.mark.parametrize("name", SPECS)
def test_same_key_same_weights_and_the_global_generator_is_untouched(name: str) -> None:
    spec, shape = SPECS[name]
    before = torch.get_rng_state()
    one, again, other = (models.build_module(spec, shape, 3, key) for key in (Key(1), Key(1), Key(2)))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), again.state_dict().values(), strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", SPECS)
def test_every_parameter_receives_a_gradient(name: str) -> None:
    spec, shape = SPECS[name]
    module = models.build_module(spec, shape, 3, Key(0))
    nn.functional.cross_entropy(module.eval()(sample(shape, 8)), torch.arange(8) % 3).backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**63))
def test_weights_depend_on_nothing_but_the_key(seed: int) -> None:
    def weights() -> torch.Tensor:
        return models.build_module(lambda: nn.Linear(3, 2), (3,), 2, Key(seed)).weight

    first = weights()
    torch.rand(5)
    assert torch.equal(first, weights())


def test_a_module_is_copied_with_its_weights() -> None:
    mine = nn.Linear(3, 2)
    copy = models.build_module(mine, (3,), 2, Key(0))
    assert copy is not mine
    assert torch.equal(copy.weight, mine.weight)
    with torch.no_grad():
        copy.weight.zero_()
    assert mine.weight.abs().sum() > 0


def test_a_class_means_its_defaults() -> None:
    class Mine(nn.Module):
        pass

    assert isinstance(models.build_module(models.linear, (4,), 2, Key(0)), nn.Sequential)
    assert isinstance(models.build_module(Mine, (4,), 2, Key(0)), Mine)


@pytest.mark.parametrize(("wrong", "kind"), [(3, "int"), ("mlp", "str"), (dict, "dict"), (lambda: 3, "int")])
def test_something_else_is_refused(wrong: object, kind: str) -> None:
    with pytest.raises(InputError, match=rf"a model spec or a function .* gives a {kind}\."):
        models.build_module(wrong, (3,), 2, Key(0))


@pytest.mark.parametrize("wrong", [nn.Linear, lambda width: nn.Linear(width, 2)])
def test_what_needs_arguments_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="cannot be made without arguments"):
        models.build_module(wrong, (3,), 2, Key(0))


def test_modules_that_cannot_be_copied_are_refused() -> None:
    with pytest.raises(InputError, match="'weight' has no shape yet"):
        models.build_module(nn.LazyLinear(3), (3,), 2, Key(0))
    computed = nn.Linear(2, 2)
    computed.scaled = computed.weight * 2
    with pytest.raises(InputError, match="cannot be copied"):
        models.build_module(computed, (2,), 2, Key(0))


def test_no_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="at least one output"):
        models.build_module(models.linear(), (3,), 0, Key(0))


@pytest.mark.parametrize(
    ("spec", "shape", "needed"),
    [
        (models.cnn001(), (784,), r"'cnn001' needs images .* 6x6 pixels, .* shape \(784,\)"),
        (models.cnn001(), (1, 5, 9), r"'cnn001' needs images .* 6x6 pixels, .* shape \(1, 5, 9\)"),
        (models.cifar10_cnn(), (28, 28), r"'cifar10-cnn' needs images .* shape \(28, 28\)"),
        (models.cnn002(), (3, 15, 32), r"'cnn002' needs images .* 16x16 pixels"),
        (models.resnet20(), (64,), r"'resnet20' needs images .* 4x4 pixels, .* shape \(64,\)"),
        (models.lstm(), (1, 28, 28), r"'lstm' needs sequences of token ids .* shape \(1, 28, 28\)"),
        (models.text_bag(), (), r"'text-bag' needs sequences .* shape \(\)"),
        (models.mlp(3), (0,), r"'mlp' needs samples with at least one number"),
    ],
)
def test_shapes_that_do_not_fit(spec: models.ModelSpec, shape: tuple[int, ...], needed: str) -> None:
    with pytest.raises(InputError, match=needed):
        models.build_module(spec, shape, 10, Key(0))


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("mlp", {"hidden": ()}, "use 'linear'"),
        ("mlp", {"hidden": [10, 0]}, "hidden width of model 'mlp' must be at least 1, not 0"),
        ("mlp", {"activation": "rellu"}, "activation must be 'relu'"),
        ("mlp", {"init": "he"}, "init must be 'kaiming' or 'torch'"),
        ("cnn001", {"dropout": (0.5, 1.0)}, "model 'cnn001' must be two numbers"),
        ("cifar10-cnn", {"init": "glorrot"}, "init must be .*'glorot'"),
        ("cnn002", {"hidden": [-1]}, "at least 1"),
        ("resnet20", {"norm": "grup"}, "norm must be .*'group'"),
        ("resnet20", {"shortcut": "conv1"}, "shortcut must be .*'conv1x1'"),
        ("resnet20", {"norm": "group", "groups": 5}, "must divide 16"),
        ("lstm", {"layers": 0}, "layers of model 'lstm'"),
        ("lstm", {"vocabulary": -1}, "vocabulary of model 'lstm'"),
        ("text-bag", {"vocabulary": 0}, "vocabulary of model 'text-bag'"),
    ],
)
def test_bad_arguments(name: str, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        models.models[name](**arguments)

"""Jacobians held by layers against dense ones: kernels and products, for every kind of layer."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap
from torch.nn import functional as F

from parley.algorithms.ntk.jacobian import Jacobian, Outer, Rows, jacobian, jvp, kernel, vjp
from parley.core.errors import InputError
from parley.core.tree import Tree
from parley.models import mlp
from parley.models.resnet import ResNet20


class Shared(nn.Module):
    """A layer called twice, a parameter of its own and a normalisation over features."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 3)
        self.scale = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.inner(torch.tanh(self.inner(x))))) * self.scale)


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm, self.head = nn.Embedding(7, 4), nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0][:, -1])


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ReLU(),
        nn.Conv2d(4, 5, 2, padding="same", padding_mode="reflect", bias=False),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(5, 6),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Linear(6, 3),
    )


CASES = {
    "mlp": (lambda: mlp(7, 5).build((2, 3), 4), (2, 3)),
    "one output": (lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1, bias=False)), (5,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)), (2, 3)),
    "cnn": (cnn, (2, 9, 9)),
    "resnet": (lambda: ResNet20().build((3, 8, 8), 3), (3, 8, 8)),
    "shared": (Shared, (6,)),
}


def made(case: str, dtype: torch.dtype, n: int = 5) -> tuple[nn.Module, Tree, Tensor]:
    torch.manual_seed(1)
    build, shape = CASES[case]
    module = build().to(dtype)
    for buffer in module.buffers():  # statistics that are not those of the start
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    return module.eval(), {n: p.detach() for n, p in module.named_parameters()}, torch.randn(n, *shape, dtype=dtype)


def dense(module: nn.Module, weights: Tree, x: Tensor) -> Tree:
    """J by torch.func, [n, outputs, ...] for every parameter."""
    return vmap(jacrev(lambda p, one: functional_call(module, p, (one[None],))[0]), (None, 0))(weights, x)


def flat(rows: Tree) -> Tensor:
    return torch.cat([rows[name].flatten(2) for name in sorted(rows)], 2)


def apart(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@pytest.mark.parametrize("case", CASES)
def test_kernels_and_products_are_those_of_the_dense_jacobian(case: str, dtype: torch.dtype, tolerance: float) -> None:
    module, weights, x = made(case, dtype)
    j = flat(dense(module, weights, x))
    n, outputs, size = j.shape
    jac = jacobian(module, weights, x)
    averaged, full = torch.einsum("njp,mjp->nm", j, j) / outputs, j.reshape(-1, size) @ j.reshape(-1, size).T
    assert apart(flat(jac.rows()), j) < tolerance
    assert apart(jac.kernel(), averaged) < tolerance
    assert apart(jac.kernel(full=True), full) < tolerance
    for budget in (2**29, j.nbytes // 2):
        assert apart(kernel(module, weights, x, budget=budget), averaged) < tolerance
        assert apart(kernel(module, weights, x, full=True, budget=budget), full) < tolerance
    r, v = torch.randn(n, outputs, dtype=dtype), {name: torch.randn_like(p) for name, p in weights.items()}
    pulled = torch.einsum("njp,nj->p", j, r)
    pushed = j @ torch.cat([v[name].flatten() for name in sorted(v)])
    for tree in (jac.vjp(r), vjp(module, weights, x, r), vjp(module, weights, x, r, budget=2**10)):
        assert apart(torch.cat([tree[name].flatten() for name in sorted(tree)]), pulled) < tolerance
    for change in (jac.jvp(v), jvp(module, weights, x, v), jvp(module, weights, x, v, budget=2**10)):
        assert apart(change, pushed) < tolerance


def test_a_recurrent_network_goes_sample_by_sample() -> None:
    torch.manual_seed(0)
    module, x = Words().double(), torch.randint(0, 7, (4, 6))
    jac = jacobian(module, {}, x)
    rows = [torch.autograd.grad(module(x[:1])[0, 1], list(module.parameters()))]
    for (name, _), row in zip(module.named_parameters(), rows[0], strict=True):
        torch.testing.assert_close(jac.rows()[name][0, 1], row)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 9), st.booleans())
def test_a_joint_permutation_of_samples_permutes_the_kernel_and_leaves_the_update(
    seed: int, n: int, full: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()
    x, r = torch.randn(n, 4, dtype=torch.float64, generator=generator), torch.randn(n, 3, dtype=torch.float64)
    order = torch.randperm(n, generator=generator)
    jac = jacobian(module, {}, x)
    rows = (order[:, None] * 3 + torch.arange(3)).flatten() if full else order
    torch.testing.assert_close(jac[order].kernel(full=full), jac.kernel(full=full)[rows][:, rows])
    for name, value in jac.vjp(r).items():
        torch.testing.assert_close(jac[order].vjp(r[order])[name], value)


def test_what_is_sent_of_it_is_small_and_lossless() -> None:
    module = mlp(100).build((784,), 10)
    x = torch.randn(3, 784)
    jac = jacobian(module, {}, x)
    trees = jac.tree()
    sent = sum(value.numel() for tree in trees.values() for value in tree.values())
    assert sent == 3 * (784 + 100 + 10 * 100)
    assert 3 * 10 * 79_510 / sent > 400
    shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
    again = Jacobian.of(trees, shapes, 10)
    assert torch.equal(again.kernel(), jac.kernel())
    assert all(torch.equal(value, jac.rows()[name]) for name, value in again.rows().items())


def test_several_parts_are_one_jacobian() -> None:
    module, weights, x = made("cnn", torch.float64, n=6)
    parts = [jacobian(module, weights, x[:2]), jacobian(module, weights, x[2:])]
    whole = jacobian(module, weights, x)
    torch.testing.assert_close(Jacobian.cat(parts).kernel(), whole.kernel())
    torch.testing.assert_close(parts[0].kernel(parts[1]), whole.kernel()[:2, 2:])
    r = torch.randn(4, 6, 3, dtype=torch.float64)
    each = [whole.vjp(own) for own in r]
    for name, values in whole.vjp(r).items():
        torch.testing.assert_close(values, torch.stack([tree[name] for tree in each]))


def test_convolutions_are_factors_or_rows_whichever_is_cheaper() -> None:
    x = torch.randn(2, 8, 4, 4)
    few = jacobian(nn.Sequential(nn.Conv2d(8, 16, 4), nn.Flatten()), {}, x)
    many = jacobian(nn.Sequential(nn.Conv2d(8, 2, 1), nn.Flatten()), {}, x)
    assert isinstance(few.blocks[0], Outer)
    assert isinstance(many.blocks[0], Rows)


@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)])
def test_a_network_in_training_mode_is_refused(layer: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(4, 4), layer)
    with pytest.raises(InputError, match=r"call its eval\(\) first"):
        jacobian(module, {}, torch.randn(3, 4))
    assert len(jacobian(module.eval(), {}, torch.randn(3, 4))) == 3


def test_bad_input_is_refused_in_a_sentence() -> None:
    module = nn.Linear(4, 2)
    with pytest.raises(InputError, match="one sample at least"):
        jacobian(module, {}, torch.randn(0, 4))
    with pytest.raises(InputError, match="'width'"):
        jacobian(module, {"width": torch.zeros(1)}, torch.randn(1, 4))
    with pytest.raises(InputError, match="one vector of outputs"):
        jacobian(nn.Conv2d(1, 1, 1), {}, torch.randn(1, 1, 2, 2))
    with pytest.raises(InputError, match="no trainable weights"):
        jacobian(module.requires_grad_(False), {}, torch.randn(1, 4))


def test_layers_that_keep_one_parameter_fixed() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    module[0].weight.requires_grad_(False)
    x = torch.randn(3, 4, dtype=torch.float64)
    weights = {n: p.detach() for n, p in module.named_parameters() if p.requires_grad}
    j = vmap(jacrev(lambda p, one: functional_call(module, p, (one[None],))[0]), (None, 0))(weights, x)
    assert apart(flat(jacobian(module, {}, x).rows()), flat(j)) < 1e-12


def test_functions_between_layers_count() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.log_softmax(self.second(F.gelu(self.first(x)) + x), 1)

    module, x = Net().double(), torch.randn(4, 4, dtype=torch.float64)
    weights = {n: p.detach() for n, p in module.named_parameters()}
    assert apart(flat(jacobian(module, weights, x).rows()), flat(dense(module, weights, x))) < 1e-12

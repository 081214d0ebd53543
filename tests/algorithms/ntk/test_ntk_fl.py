"""NTK-FL against linearised gradient descent written out, and everything around it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from parley.algorithms.exchange import disclosed
from parley.algorithms.ntk import ntk_fl as module
from parley.algorithms.ntk.jacobian import jacobian
from parley.algorithms.ntk.ntk_fl import NtkFL
from parley.algorithms.protocol import Replies
from parley.core.context import Context
from parley.core.errors import InputError
from parley.core.key import Key
from parley.core.message import Memory, Message
from parley.core.tree import Tree
from parley.data import ClientData, DataInfo, Federation
from parley.study.train import train
from parley.training.task import Task

EXACT = NtkFL(loss="mse", kernel="full", dynamics="steps", times=(1, 3, 25), lr=0.3, tolerance=1e-12)


def task_of(outputs: int = 3, seed: int = 0) -> Task:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        net = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, outputs)).double()
    info = DataInfo("points", (5,), outputs, "regression" if outputs == 1 else "classification")
    return Task(net, F.cross_entropy, info, 3)


def clients(task: Task, seed: int = 0, sizes: Sequence[int] = (4, 1, 6)) -> list[ClientData]:
    random = torch.Generator().manual_seed(seed)
    x = [torch.randn(n, 5, dtype=torch.float64, generator=random) for n in sizes]
    if task.info.outputs == 1:
        return [ClientData(own, torch.randn(len(own), dtype=torch.float64, generator=random)) for own in x]
    return [ClientData(own, torch.randint(0, task.info.outputs, (len(own),), generator=random)) for own in x]


def answered(method: NtkFL, task: Task, data: Sequence[ClientData], w: Tree) -> Replies:
    message = Message.of(model=w, buffers={})
    replies = {
        f"c{k}": method.client(task, message, Memory(), own, Context.alone(Key(k), f"c{k}")).message
        for k, own in enumerate(data)
    }
    return Replies(replies, dict.fromkeys(replies, 1 / len(replies)))


def led_to(method: NtkFL, task: Task, data: Sequence[ClientData]) -> Tree:
    w = task.initial()
    return method.candidates(task, w, *method.gathered(task, answered(method, task, data, w)))


def descended(method: NtkFL, task: Task, data: Sequence[ClientData]) -> list[Tree]:
    """Gradient descent on the linearised network f(w_0) + J (w - w_0), step by step, at the method's times."""
    x, y = torch.cat([own.x for own in data]), torch.cat([own.y for own in data])
    w0 = task.initial()
    f0, jac = functional_call(task.network, w0, (x,)).detach(), jacobian(task.network, w0, x)
    w, found = {n: v.clone() for n, v in w0.items()}, []
    for t in range(1, method.times[-1] + 1):
        f = (f0 + jac.jvp({n: w[n] - w0[n] for n in w})).requires_grad_()
        squares = y.ndim > 1 or y.is_floating_point() or method.loss == "mse"
        hot = y.view_as(f) if y.is_floating_point() else F.one_hot(y, f.shape[1])
        loss = ((f - hot) ** 2).mean() / 2 if squares else F.cross_entropy(f, y)
        step = jac.vjp(torch.autograd.grad(loss, f)[0])
        w = {n: w[n] - method.lr * step[n] for n in w}
        if t in method.times:
            found.append(w)
    return found


def apart(found: Tree, expected: Tree, start: Tree) -> float:
    gap = sum(float((found[n] - expected[n]).square().sum()) for n in found)
    return (gap / sum(float((expected[n] - start[n]).square().sum()) for n in found)) ** 0.5


def gaps(method: NtkFL, task: Task, data: Sequence[ClientData]) -> list[float]:
    found = led_to(method, task, data)
    each = [{n: v[k] for n, v in found.items()} for k in range(len(method.times))]
    return [apart(a, b, task.initial()) for a, b in zip(each, descended(method, task, data), strict=True)]


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["mse", "cross-entropy"]), st.sampled_from([1, 3]))
def test_with_the_full_kernel_and_steps_it_is_linearised_descent(seed: int, loss: str, outputs: int) -> None:
    task = task_of(outputs, seed % 97)
    method = replace(EXACT, loss="mse" if outputs == 1 else loss)
    assert max(gaps(method, task, clients(task, seed))) < 1e-10


def test_the_averaged_kernel_is_exact_for_one_output_or_one_step() -> None:
    task = task_of(1)
    assert max(gaps(replace(EXACT, kernel="averaged"), task, clients(task))) < 1e-10
    task = task_of(3)
    first, *later = gaps(replace(EXACT, kernel="averaged"), task, clients(task))
    assert first < 1e-10
    assert min(later) > 1e-3


def test_the_exponential_is_exact_for_one_step_and_close_for_small_ones() -> None:
    task = task_of(3)
    printed = replace(EXACT, dynamics="printed")
    first, *later = gaps(printed, task, clients(task))
    smaller = gaps(replace(printed, lr=0.03), task, clients(task))
    assert first < 1e-10
    assert 1e-6 < later[-1] < 0.1
    assert smaller[-1] < later[-1] / 5


@pytest.mark.parametrize("loss", ["mse", "cross-entropy"])
def test_one_step_is_gradient_descent_on_the_network_itself(loss: str) -> None:
    task = task_of(3)
    data = clients(task)
    method = NtkFL(loss=loss, dynamics="steps", times=(1,), lr=0.2)  # type: ignore[arg-type]
    w = {n: v.requires_grad_() for n, v in task.initial().items()}
    x, y = torch.cat([own.x for own in data]), torch.cat([own.y for own in data])
    f = functional_call(task.network, w, (x,))
    value = F.cross_entropy(f, y) if loss == "cross-entropy" else ((f - F.one_hot(y, 3)) ** 2).mean() / 2
    grads = torch.autograd.grad(value, list(w.values()))
    found = led_to(method, task, data)
    for (name, start), grad in zip(w.items(), grads, strict=True):
        torch.testing.assert_close(found[name][0], start.detach() - 0.2 * grad, rtol=1e-11, atol=1e-13)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from(["averaged", "full"]))
def test_it_does_not_matter_who_has_which_sample(seed: int, kernel: str) -> None:
    """Theorem of the shuffling server: rows of (J, f, Y) permuted together lead to the same weights."""
    task, random = task_of(3), torch.Generator().manual_seed(seed)
    data = clients(task, seed)
    x, y = torch.cat([own.x for own in data]), torch.cat([own.y for own in data])
    order = torch.randperm(len(x), generator=random)
    method = NtkFL(kernel=kernel, times=(5, 50), tolerance=1e-6)  # type: ignore[arg-type]
    one, two = led_to(method, task, data), led_to(method, task, [ClientData(x[order], y[order])])
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-9, atol=1e-11)


def test_every_upload_without_loss_leads_to_the_same_weights() -> None:
    task = task_of(3)
    data = clients(task)
    method = NtkFL(times=(5, 50))
    expected = led_to(method, task, data)
    for other in (replace(method, upload="dense"), replace(method, upload="top-k", density=1.0)):
        for name, value in led_to(other, task, data).items():
            torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-11)


def test_top_k_keeps_the_largest_entries_of_every_row() -> None:
    task = task_of(3)
    [own, *_] = clients(task)
    method = NtkFL(upload="top-k", density=0.2)
    reply = answered(method, task, [own], task.initial())["c0"]
    rows = jacobian(task.network, {}, own.x).rows()
    flat = torch.cat([rows[name].flatten(2) for name in task.form], 2)
    values, places = reply["entries"]["values"], reply["entries"]["places"].long()
    assert values.shape == (4, 3, round(0.2 * flat.shape[2]))
    torch.testing.assert_close(flat.gather(2, places), values)
    left = flat.abs().scatter(2, places, 0.0).amax(2)
    assert bool((values.abs().amin(2) >= left).all())


def test_factored_and_dense_uploads_have_the_inputs_in_them() -> None:
    """What `discloses` says: the server reads the samples off."""
    task = task_of(3)
    [own, *_] = clients(task)
    factored = answered(NtkFL(), task, [own], task.initial())["c0"]
    assert torch.equal(factored["activations"]["0.weight"].squeeze(1), own.x)
    dense = answered(NtkFL(upload="dense"), task, [own], task.initial())["c0"]
    weight, bias = dense["rows"]["0.weight"][:, 0, 0], dense["rows"]["0.bias"][:, 0, 0]
    torch.testing.assert_close(weight / bias.unsqueeze(1), own.x)
    assert disclosed(NtkFL().exchanges()) == disclosed(NtkFL(upload="dense").exchanges()) == ("inputs", "labels")
    assert disclosed(NtkFL(upload="top-k").exchanges()) == ("labels",)


def test_both_exchanges_of_a_round_are_about_the_same_samples() -> None:
    task = task_of(3)
    data, w = clients(task, sizes=(20,))[0], task.initial()
    method = NtkFL(share=0.3, times=(1, 2))
    context = Context.alone(Key(3), "c")
    first = method.client(task, Message.of(model=w, buffers={}), Memory(), data, context).message
    assert len(first["samples"]["labels"]) == 6
    again = Context.alone(Key(3), "c", asked="losses", exchange=1)
    asked = Message.of(candidates={n: torch.stack([v, v]) for n, v in w.items()}, buffers={}, whole=False)
    losses = method.losses(task, asked, Memory(), data, again).message.tensor("losses")
    f, y = first["samples"]["outputs"], first["samples"]["labels"]
    torch.testing.assert_close(losses, F.cross_entropy(f, y, reduction="sum").expand(2))
    other = Context.alone(Key(4), "c")
    assert not torch.equal(method.drawn(data, other)[0], method.drawn(data, context)[0])


def test_everywhere(works_everywhere):
    works_everywhere(NtkFL(times=(5, 50), share=0.7), stacks=False)


@pytest.mark.parametrize(
    "method", [NtkFL(times=(2, 9)), NtkFL(times=(2, 9), upload="top-k"), NtkFL(times=(2, 9), select="validation")]
)
def test_nodes_that_see_only_bytes_agree(table: Federation, dense_network, method: NtkFL) -> None:
    runs = [
        train(method, table, model=dense_network, rounds=2, cohort=3, seed=1, runtime=r) for r in ("inline", "wire")
    ]
    for name, value in runs[0].state.tensors.items():
        assert torch.equal(runs[1].state.tensors[name], value)


def test_the_candidates_downlink_is_counted(table: Federation, dense_network) -> None:
    def down(method: NtkFL) -> float:
        return train(method, table, model=dense_network, rounds=1, cohort=3).total("down/bytes")

    model = sum(p.nbytes for p in dense_network().parameters())
    for times in ((5,), (5, 6, 7)):
        more = down(NtkFL(times=times)) - down(NtkFL(times=times, select="last"))
        assert 3 * len(times) * model <= more <= 3 * len(times) * model + 3 * 2000


def test_who_judges(table: Federation, dense_network) -> None:
    def chosen(method: NtkFL) -> Tensor:
        run = train(method, table, model=dense_network, rounds=2, cohort=3, seed=1)
        return run.state["model"]["0.weight"]

    assert torch.equal(chosen(NtkFL()), chosen(NtkFL(select="server")))
    torch.testing.assert_close(chosen(NtkFL(select="last", times=(7, 50))), chosen(NtkFL(select="last", times=(50,))))


def test_clients_are_asked_outside_the_round_to_validate(table: Federation, dense_network) -> None:
    with pytest.raises(InputError, match="ask fewer a round"):
        train(NtkFL(select="validation"), table, model=dense_network, rounds=1)


def test_convolutions_and_statistics(network, table: Federation) -> None:
    run = train(NtkFL(times=(10, 100)), table, model=network, rounds=2, cohort=3)
    start = dict(network().named_buffers())
    assert all(torch.equal(run.state["buffers"][name], value) for name, value in start.items())


def test_settings_that_make_no_sense(table: Federation, dense_network) -> None:
    for settings_, words in (
        ({"times": ()}, "rise from 1"), ({"times": (5, 2)}, "rise from 1"), ({"share": 0.0}, "share must lie"),
        ({"density": 1.5}, "density must lie"), ({"lr": 0.0}, "lr must be above 0"),
        ({"dynamics": "printed"}, "of mean squares"), ({"select": "server", "upload": "dense"}, "needs the inputs"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            NtkFL(**settings_)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="set lr below"):
        train(NtkFL(loss="mse", dynamics="steps", lr=100.0), table, model=dense_network, rounds=1)
    with pytest.raises(InputError, match="set loss = 'mse'"):
        NtkFL().check(task_of(1))
    conv = replace(task_of(3), module=nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten()))
    with pytest.raises(InputError, match="chain of dense layers"):
        NtkFL(select="server").check(conv)


def flipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module.NtkFL, "candidates", lambda self, task, w, jac, f, y: _moved(self, w, jac, f, y, -1.0))


def not_averaged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(module.NtkFL, "candidates", lambda self, task, w, jac, f, y: _moved(self, w, jac, f, y, f.shape[1]))


def wrong_labels(patch: pytest.MonkeyPatch) -> None:
    own = module.targets
    patch.setattr(module, "targets", lambda y, f: own(y, f).roll(1, 0))


def _moved(method: NtkFL, w: Tree, jac, f: Tensor, y: Tensor, factor: float) -> Tree:
    evolution = method.evolution(jac, f, y)
    moved = jac.vjp(evolution.cumulative(method.times))
    return {name: value - factor * evolution.rate * moved[name] for name, value in w.items()}


@pytest.mark.parametrize("mistake", [flipped, not_averaged, wrong_labels], ids=lambda m: m.__name__)
def test_mistakes_are_noticed(monkeypatch: pytest.MonkeyPatch, mistake) -> None:
    mistake(monkeypatch)
    task = task_of(3)
    assert max(gaps(EXACT, task, clients(task))) > 1e-3

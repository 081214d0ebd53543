"""LoRA: adapters alone train and travel, the base stays what it was, and an export has both in one."""

import os
from importlib.util import find_spec

import pytest
import torch

from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.parts.fedals import FedALS
from parley.core.errors import InputError
from parley.core.key import Key
from parley.engine.listeners import Listener
from parley.models import build_module, export_module
from parley.models.hugging_face import HfCausal, HfClassifier
from parley.models.layers import layers
from parley.study.train import train
from tests.models.test_hugging_face import TINY, texts

RANK = 2


@pytest.fixture(autouse=True)
def peft() -> None:
    if find_spec("peft") is None or find_spec("transformers") is None:
        reason = "peft is not installed: pip install -c constraints.txt '.[lora]'"
        if "lora" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)


def adapted(**settings) -> HfCausal:
    return HfCausal(config=TINY, lora={"r": RANK, "target_modules": ["q_proj", "v_proj"]} | settings)


class Sent(Listener):
    def __init__(self) -> None:
        self.trees: list[dict[str, torch.Tensor]] = []

    def exchange(self, number, index, asked, sent, replies):
        for message in (*sent.values(), *replies.values()):
            self.trees += [message.get(group) for group in message.groups()]


@pytest.mark.parametrize("runtime", ["inline", "pool", "wire"])
def test_adapters_alone_travel_and_train(runtime: str):
    seen = Sent()
    run = train(
        FedAvg(lr=0.1, steps=2, batch=8),
        texts(),
        model=adapted(),
        rounds=2,
        runtime=runtime,
        listeners=[seen],
        workers=None if runtime == "inline" else 1,
    )
    sizes = {sum(value.numel() for value in tree.values()) for tree in seen.trees if tree}
    # A and B of two projections of 16 x 16 in three blocks.
    assert sizes == {3 * 2 * (RANK * 16 + 16 * RANK)}
    assert all("lora_" in name for tree in seen.trees for name in tree)
    after = run.module().state_dict()
    moved = {name for name in after if not torch.equal(after[name], run.task.network.state_dict()[name])}
    assert moved
    assert all("lora_" in name for name in moved)


def test_runtimes_agree():
    models = [
        train(FedAvg(lr=0.1, steps=2, batch=8), texts(), model=adapted(), rounds=2, runtime=runtime, workers=1).model()
        for runtime in ("inline", "pool")
    ]
    for name, value in models[0]["model"].items():
        assert torch.equal(models[1]["model"][name], value)


def test_blocks_are_the_layers_of_adapters():
    module = build_module(adapted(), (8,), 24, Key(0))
    named = [layer for layer in layers(module) if layer.parameters]
    assert [len(layer.parameters) for layer in named] == [4, 4, 4]
    run = train(FedALS(lr=0.1, steps=2, batch=8, alpha=2, layers=2), texts(), model=adapted(), rounds=2)
    assert not any(record.failures for record in run.records)


def test_a_classifiers_head_trains_with_the_adapters():
    model = HfClassifier(config=TINY, vocabulary=24, lora={"r": RANK, "target_modules": ["q_proj"]})
    run = train(FedAvg(lr=0.1, steps=2, batch=8), texts("classes"), model=model, rounds=1)
    sent = run.model()["model"]
    assert {"lora" if "lora_" in name else name.partition("network.")[2].split(".")[-1] for name in sent} == {
        "lora",
        "weight",
    }
    assert sum(value.numel() for name, value in sent.items() if "lora_" not in name) == 3 * 16


def test_an_export_has_the_adapters_in_its_weights(tmp_path):
    run = train(FedAvg(lr=0.5, steps=4, batch=8), texts(), model=adapted(), rounds=2)
    module, x = run.module(), texts().client("a").x
    export_module(module, x, tmp_path / "out", ["transformers"])
    plain = build_module(HfCausal(str(tmp_path / "out/transformers")), (8,), 24, Key(0)).eval()
    assert not any("lora" in name for name in plain.state_dict())
    with torch.no_grad():
        torch.testing.assert_close(plain(x), module.eval()(x), rtol=1e-4, atol=1e-5)


def test_dropout_of_adapters_draws_random_numbers():
    assert build_module(adapted(lora_dropout=0.1), (8,), 24, Key(0)).draws
    assert not build_module(adapted(), (8,), 24, Key(0)).draws


@pytest.mark.parametrize(
    ("settings", "words"), [({"rank": 2}, "no setting 'rank'"), ({"target_modules": ["nothing"]}, "adapters")]
)
def test_bad_settings_are_sentences(settings: dict, words: str):
    with pytest.raises(InputError, match=words):
        build_module(adapted(**settings), (8,), 24, Key(0))

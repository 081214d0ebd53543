"""Language models of transformers on tiny random OPTs: training, parts, tied weights, files, bad input."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import parley.data as data
from parley.algorithms.averaging.local_update import FedAvg
from parley.algorithms.parts.fedals import FedALS
from parley.cli.main import main
from parley.core.errors import InputError, UnsupportedError
from parley.core.key import Key
from parley.core.message import Message
from parley.core.tree import nbytes
from parley.core.wire import encode
from parley.data import ClientData, DataInfo, Federation
from parley.data.sources import InMemory
from parley.data.tokens import next_tokens
from parley.models import build_module, export_module, models, traits
from parley.models.hugging_face import HfCausal, HfClassifier
from parley.models.layers import layers
from parley.study.train import make_task, train
from parley.training.schedules import Inverse

LENGTH, VOCABULARY = 8, 24
TINY = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "ffn_dim": 24}
EMBEDDING = "network.model.decoder.embed_tokens.weight"
KEY = Key(3)


@pytest.fixture(autouse=True)
def transformers(request: pytest.FixtureRequest) -> None:
    if find_spec("transformers") is None:
        reason = "transformers is not installed: pip install -c constraints.txt '.[hf]'"
        if "hf" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail(reason)
        pytest.skip(reason)


def texts(targets: str = "next-token", clients: int = 3, samples: int = 16) -> Federation:
    """Each client ("genre") counts in steps of its own, modulo the vocabulary; the class is the first id modulo 3."""
    made = []
    for number in range(clients):
        starts = torch.randint(1, VOCABULARY, (samples, 1), generator=Key(number).torch())
        x = (starts + (number + 1) * torch.arange(LENGTH)) % (VOCABULARY - 1) + 1
        x[::4, LENGTH - 2 :] = 0
        made.append(ClientData(x, next_tokens(x, 0) if targets == "next-token" else x[:, 0] % 3))
    info = DataInfo("counting", (LENGTH,), VOCABULARY if targets == "next-token" else 3, "text", (), "", "", VOCABULARY)
    pool = ClientData(torch.cat([c.x for c in made]), torch.cat([c.y for c in made]))
    return Federation(info, tuple("abcdefgh"[:clients]), InMemory(tuple(made)), test=pool)


def one_pair(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MultiNLI with a single pair."""
    monkeypatch.setenv("PARLEY_DATA", str(folder))
    (folder / "multinli").mkdir()
    row = {"gold_label": "neutral", "genre": "slate", "sentence1": "it rains .", "sentence2": "it is wet"}
    for part in ("train", "dev_matched"):
        (folder / f"multinli/multinli_1.0_{part}.jsonl").write_text(json.dumps(row) + "\n")


def tiny(**config) -> HfCausal:
    return HfCausal(config=TINY | config)


def fedals(**settings) -> FedALS:
    given = {"lr": 0.2, "steps": 4, "batch": 8, "alpha": 2, "layers": 2, "optimizer": "adamw"}
    return FedALS(**given | {"options": {"weight_decay": 1e-4}, "schedule": Inverse()} | settings)


@pytest.fixture(scope="module")
def trained():
    """Four rounds by FedALS, as paper 004 trains, on a tiny model with dropout."""
    return train(fedals(), texts(), model=tiny(dropout=0.1), rounds=4, runtime="inline")


# --- layers and tied weights ---


def test_opts_layers_are_its_blocks():
    module = build_module(HfCausal(config=TINY | {"num_hidden_layers": 12}), (LENGTH,), VOCABULARY, KEY)
    found = layers(module)
    assert [layer.name.rpartition(".")[2] for layer in found] == [*map(str, range(12)), "head"]
    task = make_task(texts(), module, 0)
    phi, h = FedALS(layers=10).parts(task)  # paper 004, Table 5
    decoder = "network.model.decoder"
    blocks = {name.split(".")[4] for name in phi.parameters if ".layers." in name}
    assert blocks == {str(number) for number in range(10)}
    assert {f"{decoder}.embed_tokens.weight", f"{decoder}.embed_positions.weight"} < set(phi.parameters)
    outside = {name for name in h.parameters if ".layers." not in name}
    assert outside == {f"{decoder}.final_layer_norm.weight", f"{decoder}.final_layer_norm.bias"}
    assert {name.split(".")[4] for name in h.parameters} - {"weight", "bias"} == {"10", "11"}
    counted = [name for layer in found for name in layer.parameters]
    assert sorted(counted) == sorted(name for name, _ in module.named_parameters())


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_other_models_have_blocks_too(kind):
    sizes = (
        {"n_embd": 16, "n_layer": 2, "n_head": 2}
        if kind == "gpt2"
        else {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    )
    spec = HfClassifier(vocabulary=VOCABULARY, config={"model_type": kind, **sizes})
    module = build_module(spec, (LENGTH,), 3, KEY)
    first, second, head = layers(module)
    assert any("wte" in name or "embed_tokens" in name for name in first.parameters)
    assert not any("wte" in name or "embed_tokens" in name for name in second.parameters + head.parameters)
    assert "network.score.weight" in head.parameters
    assert traits(module).has_randomness == (kind == "gpt2")  # GPT-2's configuration has dropout


def test_the_tied_weight_is_one_tensor_in_training_messages_and_files(trained, tmp_path):
    names = trained.task.initial()
    assert EMBEDDING in names
    assert "network.lm_head.weight" not in names
    module = trained.module()
    assert module.network.lm_head.weight is module.network.model.decoder.embed_tokens.weight
    assert torch.equal(module.network.lm_head.weight, trained.state["shown"][EMBEDDING])
    # Both uses of the embedding reach its gradient: as a table of tokens, and as the weights of the output.
    values = {n: v.clone().requires_grad_() for n, v in names.items()}
    output = trained.task.apply(values, {}, torch.full((1, LENGTH), 5))
    gradient = torch.autograd.grad(output[0, 7, 2], values[EMBEDDING])[0]
    assert (gradient[7] != 0).any()
    assert (gradient[5] != 0).any()
    assert (gradient[6] == 0).all()
    files = export_module(module, texts().test.x[:4], tmp_path / "out", ["safetensors", "transformers"])
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "transformers" / "model.safetensors")
    assert {file.name for file in files} >= {"model.safetensors", "card.json"}
    again = build_module(HfCausal(weights=str(tmp_path / "out" / "transformers")), (LENGTH,), VOCABULARY, KEY).eval()
    x = texts().test.x[:5]
    torch.testing.assert_close(again(x), module(x))
    assert again.network.lm_head.weight is again.network.model.decoder.embed_tokens.weight


# --- training ---


def test_the_loss_falls_and_parts_travel_at_their_own_pace(trained):
    loss = trained.series("central/loss")[1]
    assert loss[-1] < 0.8 * loss[0]
    phi, h = trained.algorithm.parts(trained.task)
    x = trained.task.initial()
    up = trained.series("up/bytes")[1].tolist()
    often = len(encode(Message.of(update={name: x[name] for name in h.parameters})))
    both = len(encode(Message.of(update={name: x[name] for name in phi.parameters + h.parameters})))
    assert up == [3 * often, 3 * both, 3 * often, 3 * both]
    assert both - often > nbytes({name: x[name] for name in phi.parameters})


def test_alpha_one_is_fedavg():
    start = {"lr": 0.5, "steps": 3, "batch": 8}
    one = train(FedALS(alpha=1, **start), texts(), model=tiny(), rounds=2, runtime="inline")
    other = train(FedAvg(**start), texts(), model=tiny(), rounds=2, runtime="inline")
    assert one.task.initial().keys() == other.state["model"].keys()
    for name, value in other.state["model"].items():
        torch.testing.assert_close(one.state["model"][name], value, rtol=1e-5, atol=1e-6)


def test_one_client_is_adamw_with_the_papers_schedule():
    federation = texts(clients=1)
    method = fedals(alpha=1, batch=0, lr=0.5, steps=3)
    run = train(method, federation, model=tiny(), rounds=3, runtime="inline")
    module = build_module(tiny(), (LENGTH,), VOCABULARY, Key(0).fold("model")).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.5, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-4)
    pace = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 / (t / 100 + 10))
    client = federation.client("a")
    for _ in range(9):
        optimizer.zero_grad()
        logits = module.network(input_ids=client.x, attention_mask=(client.x != 0).long()).logits
        each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), client.y.flatten(), reduction="none")
        counted = (client.y >= 0).sum(1)
        (each.view_as(client.y).sum(1) / counted).mean().backward()
        optimizer.step()
        pace.step()
    for name, parameter in module.named_parameters():
        # A bias of all keys shifts every score of a query alike: its gradient is rounding, which Adam blows up.
        if not name.endswith("k_proj.bias"):
            torch.testing.assert_close(run.state["model"][name], parameter.detach(), rtol=1e-3, atol=1e-4)


def test_processes_give_the_same_bits_and_stacks_are_refused(trained):
    pool = train(fedals(), texts(), model=tiny(dropout=0.1), rounds=4, runtime="pool", workers=1)
    for name, value in trained.state.tensors.items():
        assert torch.equal(pool.state.tensors[name], value), name
    assert pool.series("central/loss")[1].tolist() == trained.series("central/loss")[1].tolist()
    still = train(fedals(), texts(), model=tiny(), rounds=1, runtime="inline")
    assert still.series("train/loss")[1][0] != trained.series("train/loss")[1][0]  # dropout was on
    with pytest.raises(UnsupportedError, match="random"):
        train(fedals(), texts(), model=tiny(dropout=0.1), rounds=1, runtime="stacked")


def test_a_run_goes_on_where_it_stopped(trained, tmp_path):
    settings = {"model": tiny(dropout=0.1), "runtime": "inline", "store": tmp_path, "checkpoint": 0.0}
    # Three rounds: phi, the optimizer's state and the count of steps lie in the clients' memories.
    half = train(fedals(), texts(), rounds=3, **settings)
    whole = train(fedals(), texts(), rounds=4, resume=half.id, **settings)
    for name, value in trained.state.tensors.items():
        assert torch.equal(whole.state.tensors[name], value), name


def test_a_classifier_learns_and_predicts():
    spec = HfClassifier(vocabulary=VOCABULARY, config=TINY)
    method = FedAvg(lr=0.02, steps=15, batch=16, optimizer="adamw")
    run = train(method, texts("classes"), model=spec, rounds=2, runtime="inline")
    assert run.last("accuracy") > 0.6
    assert run.predict(texts("classes").test.x[:5]).shape == (5, 3)


BERT = {"model_type": "bert", "intermediate_size": 24} | {k: v for k, v in TINY.items() if k != "ffn_dim"}


@pytest.mark.parametrize(("name", "config"), [("hf-causal", TINY), ("hf-classifier", TINY), ("hf-classifier", BERT)])
def test_padding_changes_nothing(name, config):
    spec = models[name](config=config | {"max_position_embeddings": 2 * LENGTH, "vocab_size": VOCABULARY})
    module = build_module(spec, (LENGTH,), 3, KEY).eval()
    short = torch.randint(1, VOCABULARY, (4, LENGTH), generator=KEY.torch())
    padded = torch.cat([short, torch.zeros_like(short)], 1)
    there = module(padded)[..., :LENGTH]
    torch.testing.assert_close(there, module(short), rtol=1e-5, atol=1e-6)


# --- weights in files ---


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as `save_pretrained` writes it, in half precision as OPT-125M's, with a classification head of three."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    folder = tmp_path_factory.mktemp("weights")
    build_module(tiny(dropout=0.1), (LENGTH,), VOCABULARY, KEY).half().save_pretrained(folder / "causal")
    spec = HfClassifier(vocabulary=VOCABULARY, config=TINY)
    build_module(spec, (LENGTH,), 2, KEY).save_pretrained(folder / "two")
    return folder


def test_weights_are_read_in_single_precision(weights):
    module = build_module(HfCausal(weights=str(weights / "causal")), (LENGTH,), VOCABULARY, Key(9))
    wanted = build_module(tiny(), (LENGTH,), VOCABULARY, KEY)
    assert module.draws  # dropout as the weights' configuration has it ...
    for (name, value), expected in zip(module.named_parameters(), wanted.parameters(), strict=True):
        assert value.dtype == torch.float32
        assert torch.equal(value, expected.half().float()), name
    still = HfCausal(weights=str(weights / "causal"), config={"dropout": 0.0})
    assert not build_module(still, (LENGTH,), VOCABULARY, KEY).draws  # ... or as the study says


def test_a_new_head_comes_from_the_key(weights):
    spec = HfClassifier(weights=str(weights / "causal"))
    one, same, other = (build_module(spec, (LENGTH,), 3, Key(seed)) for seed in (1, 1, 2))
    assert torch.equal(one.network.score.weight, same.network.score.weight)
    assert not torch.equal(one.network.score.weight, other.network.score.weight)
    body = "network.model.decoder.layers.0.fc1.weight"
    assert torch.equal(one.get_parameter(body), other.get_parameter(body))
    with pytest.raises(InputError, match=r"'score.weight' of .* is not made for 3 classes; set model.new_head"):
        build_module(HfClassifier(weights=str(weights / "two")), (LENGTH,), 3, KEY)
    fresh = build_module(HfClassifier(weights=str(weights / "two"), new_head=True), (LENGTH,), 3, KEY)
    assert fresh(torch.ones(2, LENGTH, dtype=torch.int64)).shape == (2, 3)


def test_bad_input_is_one_sentence(weights, tmp_path, monkeypatch):
    def refused(spec, sentence, length=LENGTH, outputs=VOCABULARY):
        with pytest.raises(InputError, match=sentence) as caught:
            build_module(spec, (length,), outputs, KEY)
        assert "\n" not in str(caught.value)

    causal = str(weights / "causal")
    refused(HfCausal(weights=str(tmp_path / "nowhere")), "there is no folder")
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text((weights / "causal" / "config.json").read_text())
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    refused(HfCausal(weights=str(pickled)), "only pickled ones, which can run code")
    refused(HfCausal(weights=causal), "samples have 9 tokens, but the model takes 8 at most", length=9)
    refused(HfCausal(weights=causal), "the data have 25 token ids, but the model knows 24", outputs=25)
    refused(HfCausal(weights=causal, config={"num_hidden_layers": 4}), r"lacks 'model.decoder.layers.3")
    refused(HfCausal(weights=causal, config={"drpout": 0.0}), "did you mean 'dropout'")
    refused(HfCausal(config={"model_type": "optt"}), "did you mean 'opt'")
    refused(HfCausal(config={"hidden_size": 15}), "the model 'opt' cannot be read: .*divisible")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    (broken / "model.safetensors").write_bytes(b"\x00" * 20)
    refused(HfCausal(weights=str(broken)), "cannot be read")
    with pytest.raises(InputError, match=r"sequences of token ids of shape \(length,\)"):
        build_module(HfCausal(), (3, 4), VOCABULARY, KEY)
    with pytest.raises(InputError, match="the data have 24 token ids, more than the model LanguageModel knows"):
        make_task(texts("classes"), HfClassifier(vocabulary=VOCABULARY - 1, config=TINY), 0)
    import huggingface_hub

    def offline(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    refused(HfCausal(weights="facebook/opt-125m"), r"could not be fetched from the Hugging Face hub \(no route\)")


def test_code_that_comes_with_weights_is_not_run(weights, tmp_path):
    folder = tmp_path / "own"
    folder.mkdir()
    config = json.loads((weights / "causal" / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    (folder / "model.safetensors").write_bytes((weights / "causal" / "model.safetensors").read_bytes())
    with pytest.raises(InputError, match="'auto_map', which can load code"):
        build_module(HfCausal(weights=str(folder)), (LENGTH,), VOCABULARY, KEY)
    assert not (tmp_path / "ran").exists()


def test_without_the_extra_there_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.chdir(tmp_path)
    one_pair(tmp_path, monkeypatch)
    study = '[data]\nname = "multinli"\npartition.name = "natural"\n[model]\nname = "hf-causal"\n'
    Path("study.toml").write_text(study + '[algorithm]\nname = "fedals"\n')
    for override in ("data.targets=next-token", "data.tokenizer=facebook/opt-125m"):
        with pytest.raises(SystemExit) as ended:
            main(["run", "study.toml", "--set", override])
        assert ended.value.code == 2
        sentence = "need the package transformers: run pip install -c constraints.txt '.[hf]' in a checkout of Parley."
        assert " ".join(capsys.readouterr().err.split()).endswith(sentence)


# --- tokenizers ---


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A word-level tokenizer in transformers' own files, with OPT's layout: </s> premise </s> hypothesis."""
    from tokenizers import Tokenizer, pre_tokenizers, processors
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<pad>", "</s>", "it", "rains", "is", "wet", "dry", "."]
    made = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="</s> $A", pair="</s> $A </s> $B", special_tokens=[("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    fast.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_multinli_with_a_models_own_tokenizer(tokenizer, tmp_path, monkeypatch):
    one_pair(tmp_path, monkeypatch)
    pool = data.multinli(length=10, targets="next-token", tokenizer=str(tokenizer))
    assert pool.x.tolist() == [[2, 3, 4, 8, 2, 3, 5, 6, 1, 1]]
    assert pool.y.tolist() == [[3, 4, 8, 2, 3, 5, 6, -100, -100, -100]]
    assert (pool.info.outputs, pool.info.vocabulary) == (9, 9)
    assert data.multinli(length=6, tokenizer=str(tokenizer)).x.tolist() == [[2, 3, 4, 2, 3, 5]]
    spec = HfCausal(config=TINY | {"pad_token_id": 1})
    run = train(fedals(), pool.split("natural"), model=spec, rounds=2, runtime="inline")
    assert run.last("loss") < run.series("loss")[1][0]
    with pytest.raises(InputError, match="there is no folder"):
        data.multinli(tokenizer=str(tmp_path / "nothing"))
    with pytest.raises(InputError, match=r"the tokenizer of .* cannot be read"):
        data.multinli(tokenizer=str(tmp_path / "multinli"))

"""Checkpoints of llama2.c: the converted model and tokenizer do what loops written after llama2.c do."""

import os
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from parley.core.errors import InputError
from parley.data.fetch import cache_dir
from parley.models.llama2c import convert_llama2c

DIM, HIDDEN, LAYERS, HEADS, GROUPS, LENGTH = 16, 24, 2, 4, 2, 10
PIECES = [*(f"<0x{byte:02X}>" for byte in range(256)), " t", "he", " a", " the", "e", "t", "h", " ", "a", "n", "an"]
VOCABULARY = 3 + len(PIECES)


@pytest.fixture(autouse=True)
def transformers() -> None:
    if find_spec("transformers") is None:
        if "hf" in os.environ.get("PARLEY_REQUIRE", ""):
            pytest.fail("transformers is not installed")
        pytest.skip("transformers is not installed: pip install -c constraints.txt '.[hf]'")


def made(folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    random, head = np.random.default_rng(0), DIM // HEADS
    shapes = {
        "embed": (VOCABULARY, DIM),
        "rms_att": (LAYERS, DIM),
        "wq": (LAYERS, DIM, DIM),
        "wk": (LAYERS, GROUPS * head, DIM),
        "wv": (LAYERS, GROUPS * head, DIM),
        "wo": (LAYERS, DIM, DIM),
        "rms_ffn": (LAYERS, DIM),
        "w1": (LAYERS, HIDDEN, DIM),
        "w2": (LAYERS, DIM, HIDDEN),
        "w3": (LAYERS, HIDDEN, DIM),
        "rms_final": (DIM,),
        "tables": (LENGTH * head,),
    }
    w = {name: random.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    header = struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, GROUPS, VOCABULARY, LENGTH)
    (folder / "model.bin").write_bytes(header + b"".join(value.tobytes() for value in w.values()))
    tokens = ["<unk>", "\n<s>\n", "\n</s>\n", *PIECES]
    body = b"".join(
        struct.pack("<fi", score(number), len(token.encode())) + token.encode() for number, token in enumerate(tokens)
    )
    (folder / "tok.bin").write_bytes(struct.pack("<i", 6) + body)
    return folder / "model.bin", folder / "tok.bin", w


def score(number: int) -> float:
    return -float(max(number - 259, 0))


def forward(w: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """The logits after the last token, with rotations of neighbouring entries, position by position."""
    head, cache = DIM // HEADS, [([], []) for _ in range(LAYERS)]

    def norm(x, scale):
        return x / np.sqrt((x**2).mean() + 1e-5) * scale

    def rotate(x, position):
        x = x.copy()
        for i in range(0, len(x), 2):
            angle = position * 10000.0 ** (-(i % head) / head)
            a, b = x[i], x[i + 1]
            x[i], x[i + 1] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
        return x

    for position, token in enumerate(tokens):
        x = w["embed"][token].astype(np.float64)
        for layer, (keys, values) in enumerate(cache):
            inner = norm(x, w["rms_att"][layer])
            q = rotate(w["wq"][layer] @ inner, position)
            keys.append(rotate(w["wk"][layer] @ inner, position))
            values.append(w["wv"][layer] @ inner)
            out = np.zeros(DIM)
            for h in range(HEADS):
                own, group = slice(h * head, (h + 1) * head), h // (HEADS // GROUPS)
                seen = slice(group * head, (group + 1) * head)
                weights = np.array([q[own] @ key[seen] for key in keys]) / np.sqrt(head)
                weights = np.exp(weights - weights.max())
                out[own] = sum(a * v[seen] for a, v in zip(weights / weights.sum(), values, strict=True))
            x = x + w["wo"][layer] @ out
            inner = norm(x, w["rms_ffn"][layer])
            gate = w["w1"][layer] @ inner
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ inner))
    return w["embed"] @ norm(x, w["rms_final"])


def encode(text: str) -> list[int]:
    """A space in front, characters, then the best pair merged again and again."""
    tokens = ["<unk>", "<s>", "</s>", *PIECES]
    ids = []
    for character in " " + text:
        ids += [tokens.index(character)] if character in tokens else [3 + byte for byte in character.encode()]
    while True:
        pairs = [
            (score(tokens.index(pair)), -i)
            for i in range(len(ids) - 1)
            if (pair := tokens[ids[i]] + tokens[ids[i + 1]]) in tokens
        ]
        if not pairs:
            return [1, *ids]
        place = -max(pairs)[1]
        ids[place : place + 2] = [tokens.index(tokens[ids[place]] + tokens[ids[place + 1]])]


def test_the_network_computes_what_llama2c_computes(tmp_path):
    from transformers import AutoModelForCausalLM

    weights, tokenizer, w = made(tmp_path)
    folder = convert_llama2c(weights, tokenizer, tmp_path / "out")
    network = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").double()
    tokens = [1, 7, 100, 262, 3, 9]
    with torch.no_grad():
        logits = network(torch.tensor([tokens])).logits[0, -1].numpy()
    np.testing.assert_allclose(logits, forward(w, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", ["the hen", "a the", "than", "Zeit", "nathan the ant", "é"])
def test_the_tokenizer_merges_by_score(tmp_path, text: str):
    from transformers import AutoTokenizer

    weights, tokenizer, _ = made(tmp_path)
    folder = convert_llama2c(weights, tokenizer, tmp_path / "out")
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"] == encode(text)


def test_other_files_are_refused(tmp_path):
    weights, tokenizer, _ = made(tmp_path)
    (tmp_path / "short.bin").write_bytes(b"x" * 9)
    (tmp_path / "cut.bin").write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(InputError, match="no checkpoint"):
        convert_llama2c(tmp_path / "short.bin", tokenizer, tmp_path / "out")
    with pytest.raises(InputError, match="its header means"):
        convert_llama2c(tmp_path / "cut.bin", tokenizer, tmp_path / "out")
    with pytest.raises(InputError, match="no tokenizer"):
        convert_llama2c(weights, tmp_path / "short.bin", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_the_example_of_adapters_runs():
    if find_spec("peft") is None:
        pytest.skip("peft is not installed: pip install -c constraints.txt '.[lora]'")
    if not (cache_dir() / "llama/stories260K.bin").is_file() or not (cache_dir() / "multinli").is_dir():
        pytest.skip(f"stories260K.bin or MultiNLI is not in {cache_dir()}")
    command = [sys.executable, "examples/lora.py", "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines() if "test loss" in line] == ["FedAvg", "FedALS"]

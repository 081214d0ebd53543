"""Checkpoints of llama2.c (Karpathy, 2023), such as the story teller of 260,000 weights, as a folder of transformers.

    convert_llama2c("stories260K.bin", "tok512.bin", "stories260k")

The weights' file is a header of seven int32 (dim, hidden_dim, layers, heads, key-value heads, vocabulary, length) and
float32 tensors; that of the tokenizer has a score and the bytes of every token. The embedding is the output's too.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from parley.core.errors import InputError

_HEADER = 7
_UNKNOWN, _BEGIN, _END = 0, 1, 2


def convert_llama2c(weights: Path | str, tokenizer: Path | str, folder: Path | str) -> Path:
    """Write the folder with `config.json`, `model.safetensors` and the tokenizer; return it."""
    folder, raw = Path(folder), Path(weights).read_bytes()
    if len(raw) < 4 * _HEADER:
        raise InputError(f"'{weights}' is no checkpoint of llama2.c: it has {len(raw)} bytes.")
    dim, hidden, layers, heads, groups, vocabulary, length = struct.unpack(f"<{_HEADER}i", raw[: 4 * _HEADER])
    tensors = _tensors(
        np.frombuffer(raw, "<f4", offset=4 * _HEADER),
        str(weights),
        {
            "dim": dim,
            "hidden": hidden,
            "layers": layers,
            "heads": heads,
            "groups": groups,
            "vocabulary": vocabulary,
            "length": length,
        },
    )
    tokens = _tokenizer(Path(tokenizer), vocabulary)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": dim, "intermediate_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": groups,
        "vocab_size": vocabulary, "max_position_embeddings": length, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": True, "bos_token_id": _BEGIN, "eos_token_id": _END, "pad_token_id": _UNKNOWN,
        "hidden_act": "silu",
    }  # fmt: skip
    named = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<unk>",
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(named, indent=1), encoding="utf-8")
    return folder


def _tensors(values: np.ndarray, name: str, size: dict[str, int]) -> dict[str, Tensor]:
    """The tensors by their names in transformers."""
    dim, hidden, layers, heads, groups = (size[key] for key in ("dim", "hidden", "layers", "heads", "groups"))
    head = dim // heads if heads > 0 else 0
    shapes = {
        "embed": (size["vocabulary"], dim),
        "input": (layers, dim),
        "q": (layers, dim, dim),
        "k": (layers, groups * head, dim),
        "v": (layers, groups * head, dim),
        "o": (layers, dim, dim),
        "post": (layers, dim),
        "gate": (layers, hidden, dim),
        "down": (layers, dim, hidden),
        "up": (layers, hidden, dim),
        "norm": (dim,),
    }
    tables = size["length"] * head  # cosines and sines of the positions, which transformers computes itself
    expected = sum(int(np.prod(shape)) for shape in shapes.values()) + tables
    if min(size.values()) < 1 or len(values) != expected:
        raise InputError(f"'{name}' has {len(values)} weights where its header means {expected}.")
    parts: dict[str, Tensor] = {}
    position = 0
    for key, shape in shapes.items():
        count = int(np.prod(shape))
        parts[key] = torch.from_numpy(values[position : position + count].copy()).reshape(shape)
        position += count
    tensors = {"model.embed_tokens.weight": parts["embed"], "model.norm.weight": parts["norm"]}
    for layer in range(layers):
        by_layer = {
            "input_layernorm": parts["input"],
            "post_attention_layernorm": parts["post"],
            "mlp.gate_proj": parts["gate"],
            "mlp.down_proj": parts["down"],
            "mlp.up_proj": parts["up"],
            "self_attn.v_proj": parts["v"],
            "self_attn.o_proj": parts["o"],
        }
        made = {key: tensor[layer] for key, tensor in by_layer.items()}
        made["self_attn.q_proj"] = _rotated(parts["q"][layer], heads)
        made["self_attn.k_proj"] = _rotated(parts["k"][layer], groups)
        tensors |= {f"model.layers.{layer}.{key}.weight": tensor.contiguous() for key, tensor in made.items()}
    return tensors


def _rotated(weight: Tensor, heads: int) -> Tensor:
    """Rows for rotations of halves, as transformers has them, in place of rotations of neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _tokenizer(path: Path, vocabulary: int) -> dict[str, Any]:
    """As `tokenizer.json`: pairs are merged in the order of the scores, bytes stand for what is unknown."""
    raw = path.read_bytes()
    tokens: list[str] = []
    scores: list[float] = []
    position = 4
    try:
        for _ in range(vocabulary):
            score, size = struct.unpack_from("<fi", raw, position)
            position += 8 + size
            scores.append(score)
            tokens.append(raw[position - size : position].decode("utf-8"))
    except (struct.error, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' is no tokenizer of llama2.c with {vocabulary} tokens.") from error
    tokens = ["<unk>", "<s>", "</s>", *(token.replace(" ", "▁") for token in tokens[3:])]
    ids = {token: number for number, token in enumerate(tokens)}
    merges = sorted(
        (-scores[number], number, [token[:cut], token[cut:]])
        for token, number in ids.items()
        for cut in range(1, len(token))
        if number > _END and token[:cut] in ids and token[cut:] in ids and not token.startswith("<0x")
    )
    special = [
        {
            "id": number,
            "content": tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number in (_UNKNOWN, _BEGIN, _END)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special("<s>"), _text("A", 0)],
            "pair": [_special("<s>"), _text("A", 0), _special("<s>"), _text("B", 0)],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [_BEGIN], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [pair for *_, pair in merges],
        },
    }


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}


def _text(which: str, kind: int) -> dict[str, Any]:
    return {"Sequence": {"id": which, "type_id": kind}}

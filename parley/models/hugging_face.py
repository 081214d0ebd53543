"""Language models of Hugging Face's transformers, from a configuration or from weights in safetensors files.

They need the extra `hf`, which is imported when such a model is built. Code that comes with weights is not
run and pickled weights are refused.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from parley.core.errors import InputError, nearest
from parley.core.extras import how_to_install
from parley.data.pretrained import import_transformers, pretrained_folder, quiet, readable_weights, refuse_code
from parley.models.blocks import block_layers
from parley.models.layers import Layer
from parley.models.spec import check_positive, check_tokens, models
from parley.models.text import PADDING

SMALL_OPT: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "ffn_dim": 256,
    "dropout": 0.0,
}
"""OPT's layout at a size for trying things out; OPT-125M has 12 blocks of 768 units."""

# Plain attention has gradients of every order and makes no hidden choice of kernels.
_PLAIN: dict[str, Any] = {"attn_implementation": "eager", "dtype": torch.float32}
_SAFE: dict[str, Any] = {**_PLAIN, "use_safetensors": True, "local_files_only": True}


class LanguageModel(nn.Module):
    """A network of transformers as the training core wants it: token ids in, logits out, padding masked."""

    def __init__(self, network: Any, every: bool) -> None:
        super().__init__()
        self.network = network
        self.every = every
        self.draws = any(float(p or 0) > 0 for name, p in network.config.to_dict().items() if _is_dropout(name))
        self.draws |= any(layer.p > 0 for layer in network.modules() if isinstance(layer, nn.Dropout))

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] ids to [B, classes], or to [B, vocabulary, T] for the token after every position."""
        mask = (tokens != self.network.config.pad_token_id).long()
        logits: Tensor = self.network(input_ids=tokens, attention_mask=mask).logits
        return logits.transpose(1, 2) if self.every else logits

    def parley_layers(self) -> tuple[Layer, ...]:
        """The blocks; embeddings belong to the first, what follows the last is the head."""
        other = 0 if self.network.config.pad_token_id else 1
        return block_layers(self, torch.full((1, 2), other, dtype=torch.int64))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the folder that `transformers` reads again with `from_pretrained`; adapters are added to their base."""
        with quiet(import_transformers()):
            _merged(self.network).save_pretrained(folder)

    def reloaded(self, folder: str | Path) -> LanguageModel:
        """The same kind of model with the weights of such a folder."""
        with quiet(import_transformers()):
            network = type(_merged(self.network)).from_pretrained(folder, **_SAFE)
        return LanguageModel(network, self.every)


@dataclass(frozen=True)
class HuggingFace:
    """What both kinds of language models have in common."""

    weights: str | None = None
    """Folder with config.json and .safetensors files, or a name on the Hugging Face hub; without it, random weights of
    the model that config describes."""
    revision: str | None = None
    """Commit, branch or tag of the weights on the hub."""
    config: dict[str, Any] = field(default_factory=dict)
    """[model.config]: settings of the transformers configuration, such as model_type, hidden_size, num_hidden_layers or
    dropout; by default a small OPT. With weights they override the weights' own."""
    lora: dict[str, Any] = field(default_factory=dict)
    """[model.lora]: train low-rank adapters (LoRA, by the package peft) and, of a classifier, the head; all else is
    frozen and does not travel. Settings of peft's LoraConfig, such as r, lora_alpha or target_modules."""

    def __post_init__(self) -> None:
        refuse_code(self.config, "model.config")
        refuse_code(self.lora, "model.lora")
        if self.weights is not None and Path(self.weights).expanduser().is_dir():
            # A stored run is read from wherever its user happens to be.
            object.__setattr__(self, "weights", str(Path(self.weights).expanduser().resolve()))

    def _network(self, loader: str, length: int, vocabulary: int, **settings: Any) -> Any:
        """The network, for sequences of this length and (at least) so many token ids."""
        transformers = import_transformers()
        folder = None if self.weights is None else _safetensors_folder(self.weights, self.revision)
        what = f"the model '{self.weights or self.config.get('model_type', 'opt')}'"
        with quiet(transformers), readable_weights(what):
            if folder is None:
                config = _described(transformers, self.config, vocabulary, length)
            else:
                stored = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
                config = _adjusted(stored, self.config)
            if config.pad_token_id is None:
                config.pad_token_id = config.eos_token_id
            for name, value in {"use_cache": False, **settings}.items():
                setattr(config, name, value)
            _check_fit(config, length, vocabulary)
            kind = getattr(transformers, loader)
            if folder is None:
                return kind.from_config(config, **_PLAIN, trust_remote_code=False)
            network, report = kind.from_pretrained(
                folder,
                config=config,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                trust_remote_code=False,
                **_SAFE,
            )
            self._check_loaded(network, set(report["missing_keys"]), {entry[0] for entry in report["mismatched_keys"]})
            return network

    def _check_loaded(self, network: Any, missing: set[str], misshapen: set[str]) -> None:
        """Refuse weights that are not those of this model."""
        for name in sorted(missing | misshapen):
            raise InputError(f"'{self.weights}' lacks '{name}' of the {type(network).__name__} in the shape needed.")


@models("hf-causal")
@dataclass(frozen=True)
class HfCausal(HuggingFace):
    """Language model of transformers (OPT, GPT-2, ...), Gholami and Seferoglu's OPT-125M; outputs = vocabulary size."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Outputs [B, vocabulary, T], the order `cross_entropy` wants, for data whose targets are the next tokens."""
        check_tokens("hf-causal", shape)
        network = self._network("AutoModelForCausalLM", shape[0], outputs)
        return LanguageModel(_adapted(network, self.lora, "CAUSAL_LM"), every=True)


@models("hf-classifier")
@dataclass(frozen=True)
class HfClassifier(HuggingFace):
    """Sequence classifier of transformers: a body, pretrained or not, with a dense head for the data's classes."""

    vocabulary: int = 8192
    """Number of token ids of a model without weights."""
    new_head: bool = False
    """Replace a head that has another number of classes, instead of refusing the weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("hf-classifier", "vocabulary", self.vocabulary)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """Outputs [B, classes]; weights without a head get a new one."""
        check_tokens("hf-classifier", shape)
        vocabulary = 1 if self.weights is not None else self.config.get("vocab_size", self.vocabulary)
        network = self._network("AutoModelForSequenceClassification", shape[0], vocabulary, num_labels=outputs)
        return LanguageModel(_adapted(network, self.lora, "SEQ_CLS"), every=False)

    def _check_loaded(self, network: Any, missing: set[str], misshapen: set[str]) -> None:
        body = f"{network.base_model_prefix}."
        heads = sorted(name for name in misshapen if not name.startswith(body))
        if heads and not self.new_head:
            raise InputError(
                f"the head '{heads[0]}' of '{self.weights}' is not made for {network.config.num_labels} classes; set "
                "model.new_head = true to start a new one."
            )
        inner, bent = ({name for name in names if name.startswith(body)} for names in (missing, misshapen))
        super()._check_loaded(network, inner, bent)


def _adapted(network: Any, settings: dict[str, Any], kind: str) -> Any:
    """The network with adapters, everything else frozen; without settings the network itself."""
    if not settings:
        return network
    try:
        import peft
    except ImportError as error:
        raise InputError(f"[model.lora] needs the package peft: {how_to_install('lora')}.") from error
    known = {setting.name for setting in fields(peft.LoraConfig)} - {"task_type", "inference_mode"}
    for name in settings:
        if name not in known:
            raise InputError(f"model.lora has no setting '{name}': {nearest(name, known)}")
    with readable_weights("the adapters of model.lora"):
        return peft.get_peft_model(network, peft.LoraConfig(task_type=kind, **settings))


def _merged(network: Any) -> Any:
    """The network without adapters: what they do is in its weights."""
    return deepcopy(network).merge_and_unload() if hasattr(network, "merge_and_unload") else network


def _described(transformers: Any, settings: dict[str, Any], vocabulary: int, length: int) -> Any:
    """The configuration of a model without weights."""
    kind = str(settings.get("model_type", "opt"))
    if kind not in transformers.CONFIG_MAPPING:
        raise InputError(f"unknown model_type '{kind}' in model.config: {nearest(kind, transformers.CONFIG_MAPPING)}")
    small = SMALL_OPT | {"max_position_embeddings": length} if kind == "opt" else {}
    given = {name: value for name, value in settings.items() if name != "model_type"}
    _adjusted(transformers.AutoConfig.for_model(kind), given)  # refuses settings it does not have
    return transformers.AutoConfig.for_model(
        kind, **{"vocab_size": vocabulary, "pad_token_id": PADDING} | small | given
    )


def _adjusted(config: Any, settings: dict[str, Any]) -> Any:
    """The configuration with these settings, none of which may be new to it."""
    for name, value in settings.items():
        if not hasattr(config, name):
            raise InputError(f"model.config has no setting '{name}': {nearest(name, config.to_dict())}")
        setattr(config, name, value)
    return config


def _safetensors_folder(weights: str, revision: str | None) -> Path:
    folder = pretrained_folder(weights, revision)
    if any(folder.glob("*.safetensors")):
        return folder
    pickled = any(folder.glob("*.bin")) or any(folder.glob("*.pt"))
    raise InputError(
        f"'{weights}' has no weights in .safetensors files"
        + (", only pickled ones, which can run code when they are read" if pickled else "")
        + "; see docs/models.md for how to convert weights you trust."
    )


def _check_fit(config: Any, length: int, vocabulary: int) -> None:
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and length > longest:
        raise InputError(f"samples have {length} tokens, but the model takes {longest} at most; lower data.length.")
    if vocabulary > config.vocab_size:
        raise InputError(
            f"the data have {vocabulary} token ids, but the model knows {config.vocab_size}; use its own tokenizer "
            "([data] tokenizer = ...)."
        )
    if config.pad_token_id is None:
        raise InputError("the model has neither a padding nor an end-of-text token; set model.config.pad_token_id.")


def _is_dropout(name: str) -> bool:
    return "dropout" in name or name.endswith("pdrop") or name == "layerdrop"

"""Weights and tokenizers of Hugging Face's transformers: an extra that is imported where it is used.

Nothing here runs code that comes with weights, and nothing is unpickled: pickled files are not even fetched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from parley.core.errors import InputError
from parley.core.extras import how_to_install

_FILES = ("*.safetensors", "*.json", "*.txt", "*.model")
"""What is fetched from the hub: weights, configuration, vocabulary."""
_CONFIGURATIONS = ("config.json", "generation_config.json", "tokenizer_config.json")
_CODE = re.compile(r"auto_map|auto_mapping|trust_remote_code|_(attn|experts).*|megatron_(core|config)")
"""Settings by which transformers or peft load code from a hub, or a module by its name."""
_KERNELS = re.compile(r"(attn|experts)_implementation")
"""Settings that choose a kernel: one of the library's own is a single word, one from a hub is not."""


def import_transformers() -> Any:
    """The package, or a sentence about the extra that brings it."""
    try:
        import transformers
    except ImportError as error:
        raise InputError(
            f"models and tokenizers of Hugging Face need the package transformers: {how_to_install('hf')}."
        ) from error
    return transformers


def refuse_code(settings: Mapping[str, Any], where: str) -> None:
    """Refuse settings that would load code, however deep they are nested; an InputError names the first."""
    for key, value in settings.items():
        chosen = value.values() if isinstance(value, Mapping) else [value]
        plain = all(each is None or (isinstance(each, str) and re.fullmatch(r"\w+", each)) for each in chosen)
        if _CODE.fullmatch(key) or (_KERNELS.fullmatch(key) and not plain):
            raise InputError(f"{where} has the setting '{key}', which can load code from elsewhere; take it out.")
        for inner in value if isinstance(value, list | tuple) else [value]:
            if isinstance(inner, Mapping):
                refuse_code({str(name): each for name, each in inner.items()}, where)


def _checked(folder: Path) -> Path:
    """The same folder, whose configurations would load no code."""
    for path in (folder / name for name in _CONFIGURATIONS):
        if not path.is_file():
            continue
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"{path} cannot be read: {first_line(error)}") from None
        if not isinstance(settings, dict):
            raise InputError(f"{path} is no configuration.")
        refuse_code(settings, str(path))
    return folder


def pretrained_folder(name: str, revision: str | None = None) -> Path:
    """The folder of that name, or that of a repository on the hub, fetched unless it is in the hub's own cache."""
    import_transformers()
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _checked(folder)
    if folder.is_absolute() or name.startswith(("~", ".")) or name.count("/") > 1:
        raise InputError(f"there is no folder '{name}' with weights or a tokenizer.")
    import huggingface_hub

    try:
        fetched = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(
            f"'{name}' is no folder here and could not be fetched from the Hugging Face hub ({first_line(error)}); "
            "name a folder with the weights."
        ) from error
    return _checked(fetched)


def token_pairs(name: str, pairs: Sequence[tuple[str, str]], length: int) -> tuple[Tensor, int, int]:
    """Pairs of texts as the tokenizer of these weights puts them together: ids [n, length], its padding and its size.

    The longer text of a pair that does not fit is cut first; padding stands on the right. A tokenizer without a padding
    token pads with its end-of-text token, as models without one do here.
    """
    transformers = import_transformers()
    folder = pretrained_folder(name)
    with quiet(transformers), readable_weights(f"the tokenizer of '{name}'"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if tokenizer.pad_token is None and tokenizer.eos_token is None:
        raise InputError(f"the tokenizer of '{name}' has neither a padding nor an end-of-text token.")
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    first, second = zip(*pairs, strict=True) if pairs else ((), ())
    ids = tokenizer(
        list(first),
        list(second),
        truncation="longest_first",
        max_length=length,
        padding="max_length",
        padding_side="right",
        return_attention_mask=False,
    )["input_ids"]
    return torch.tensor(ids, dtype=torch.int64).reshape(-1, length), int(tokenizer.pad_token_id), len(tokenizer)


@contextmanager
def readable_weights(what: str) -> Iterator[None]:
    """Whatever transformers raises about files and settings it cannot use, as one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what} cannot be read: {first_line(error)}") from error


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No progress bars and no reports about new heads, which the caller checks itself."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The beginning of what an exception says."""
    return next((line.strip()[:300] for line in str(error).splitlines() if line.strip()), type(error).__name__)

"""The model card: what an exported model is, where it comes from and how it is loaded, for people and for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from parley.core.errors import InputError
from parley.models.buffers import float_buffers, int_buffers

_LOADING = {
    "safetensors": "`module.load_state_dict(safetensors.torch.load_file('model.safetensors'))` on a fresh module",
    "torchscript": "`torch.jit.load('model.torchscript.pt')`, or LibTorch in C++",
    "onnx": "any ONNX runtime; input `input`, output `output`",
    "transformers": "`from_pretrained` of the class in its config.json, with the tokenizer of the data",
}


@dataclass(frozen=True)
class Exported:
    """One file of an export and how far its outputs are from the module's."""

    format: str
    file: str
    largest_difference: float


@dataclass(frozen=True)
class Card:
    """The content of `card.json`."""

    model: dict[str, Any]
    input: dict[str, Any]
    output: dict[str, Any]
    files: list[dict[str, Any]]
    left_out: dict[str, str]
    provenance: dict[str, Any]

    @property
    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"


def jsonable(card: Mapping[str, object]) -> dict[str, Any]:
    """A copy of the provenance that JSON can hold; anything else is refused before work begins."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(card, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InputError(f"the model card must hold plain numbers, texts, lists and tables only: {error}.") from error
    return copy


def describe(
    module: nn.Module,
    example: Tensor,
    output: Tensor,
    folder: Path,
    written: Sequence[Exported],
    left_out: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> Card:
    """The card of `module`, whose files are already in `folder`."""
    return Card(
        model={
            "class": type(module).__name__,
            "trainable_parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
            "frozen_parameters": sum(p.numel() for p in module.parameters() if not p.requires_grad),
            "buffers": len(float_buffers(module)) + len(int_buffers(module)),
        },
        input=_signature(example),
        output=_signature(output),
        files=[asdict(exported) | _fingerprint(folder / exported.file) for exported in written],
        left_out=dict(left_out),
        provenance=dict(provenance),
    )


def page(card: Card) -> str:
    """The card as a Markdown page."""
    model = card.model
    lines = [
        f"# {card.provenance.get('name', model['class'])}",
        "",
        f"A {model['class']} with {model['trainable_parameters']:,} trainable parameters, trained with Parley.",
        "",
        f"- input: {card.input['dtype']} {_shape(card.input)}",
        f"- output: {card.output['dtype']} {_shape(card.output)}",
        "",
        "## Files",
        "",
    ]
    for file in card.files:
        checked = f"; outputs agree to {file['largest_difference']:.1e}" if file["format"] != "safetensors" else ""
        lines.append(f"- `{file['file']}` ({file['bytes']:,} bytes{checked}): {_LOADING[file['format']]}")
    lines += [f"- {name} is left out: {reason}" for name, reason in card.left_out.items()]
    lines += ["", "## Provenance", "", "```json", json.dumps(card.provenance, indent=2, ensure_ascii=False), "```", ""]
    return "\n".join(lines)


def _signature(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": ["batch", *tensor.shape[1:]]}


def _shape(signature: Mapping[str, Any]) -> str:
    return f"[{', '.join(map(str, signature['shape']))}]"


def _fingerprint(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}

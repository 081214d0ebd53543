"""The model card: what an exported model is, where it comes from and how it is loaded, for people and for programs."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from parley.core.errors import InputError
from parley.core.text import shown
from parley.data.client import DataInfo
from parley.data.columns import Column
from parley.data.encoding import Encoding
from parley.models.buffers import float_buffers, int_buffers
from parley.models.prepared import Prepared, network_of, recalibration_of, rescaling_of

_RAW, _AFTER = "raw inputs", "preprocessed inputs"
"""What a file takes."""
_ABOUT_CELLS = (
    "A number becomes (cell - center) / scale in double precision, rounded to the input's type; a text an input of 1 "
    "for its level and of 0 for all others, in the order of the codes, the last of which is for any other text; a text "
    "in an order (ordinal) its code, then (code - center) / scale; a date, as days since 1970-01-01 with the time as a "
    "fraction, (days - center) / scale, its year (year - that of center) / scale in years of 365.2425 days, but no "
    "less than 1, its month and weekday an input of 1 among 12, from January, or 7, from Monday. A missing cell is "
    "fill; without fill a missing text has zeros alone. An indicator, the column's last input, is 1 where the "
    "cell is missing."
)
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
    checked_with: str = "PyTorch"
    """What ran the file to find that out."""


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
    info: DataInfo | None = None,
) -> Card:
    """The card of `module`, whose files are already in `folder`; `info` says what it was trained on."""
    network = network_of(module)
    bare = _AFTER if isinstance(module, Prepared) else _RAW
    return Card(
        model={
            "class": type(network).__name__,
            "trainable_parameters": sum(p.numel() for p in network.parameters() if p.requires_grad),
            "frozen_parameters": sum(p.numel() for p in network.parameters() if not p.requires_grad),
            "buffers": len(float_buffers(network)) + len(int_buffers(network)),
        },
        input=_signature(example) | ({} if info is None else _inputs(info.raw)) | _preprocessing(module, info),
        output=_signature(output) | ({} if info is None else _outputs(info)) | _recalibration(module),
        files=[
            asdict(exported)
            | {"takes": bare if exported.format in ("safetensors", "transformers") else _RAW}
            | _fingerprint(folder / exported.file)
            for exported in written
        ],
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
        f"- input: {card.input['dtype']} {_shape(card.input)}{_about_inputs(card.input)}",
        f"- output: {card.output['dtype']} {_shape(card.output)}{_about_outputs(card.output)}",
        "",
        *_about_preprocessing(card),
        "## Files",
        "",
    ]
    for file in card.files:
        checked = f"; outputs agree to {file['largest_difference']:.1e} in {file['checked_with']}"
        checked = checked if file["format"] != "safetensors" else ""
        lines.append(
            f"- `{file['file']}` ({file['bytes']:,} bytes{checked}; takes {file['takes']}): {_LOADING[file['format']]}"
        )
    lines += [f"- {name} is left out: {reason}" for name, reason in card.left_out.items()]
    lines += ["", "## Provenance", "", "```json", json.dumps(card.provenance, indent=2, ensure_ascii=False), "```", ""]
    return "\n".join(lines)


def _inputs(info: DataInfo) -> dict[str, Any]:
    what = {"columns": list(info.columns)} if info.columns else {}
    return what | {"missing_values": info.missing}


def _outputs(info: DataInfo) -> dict[str, Any]:
    if info.kind == "regression":
        return {"meaning": "values"}
    return {"meaning": "logits", "classes": list(info.classes)} if info.classes else {"meaning": "logits"}


def _recalibration(module: nn.Module) -> dict[str, Any]:
    if (scaled := rescaling_of(module)) is not None:
        numbers = {"center": scaled.target_center.tolist(), "scale": scaled.target_scale.tolist()}  # type: ignore[operator]
        return {"target_scaling": numbers}
    step = recalibration_of(module)
    return {} if step is None else {"recalibration": {"method": step.method, "slope": step.slope, "shift": step.shift}}


def _preprocessing(module: nn.Module, info: DataInfo | None) -> dict[str, Any]:
    """The numbers by which raw inputs become those that the network takes, where that is known."""
    if not isinstance(module, Prepared):
        return {} if info is None else {"preprocessing": None}
    scaling = module.scaling
    if isinstance(scaling, Encoding):
        return {"preprocessing": {"table": [_column(column) for column in scaling.table]}}
    fill = {"fill": list(scaling.fill)} if scaling.fill else {}
    return {"preprocessing": {"center": list(scaling.mean), "scale": list(scaling.deviation)} | fill}


def _column(column: Column) -> dict[str, Any]:
    """What a column becomes, and the number that stands for each text in the files that take raw inputs."""
    of_dates = {"parts", "since"}
    facts = {name: value for name, value in asdict(column).items() if column.kind == "date" or name not in of_dates}
    if not column.texts:
        return facts
    other = None if column.kind == "ordinal" else int(column.code_of_unknown)
    return facts | {"codes": {level: code for code, level in enumerate(column.levels)}, "code_of_other": other}


def _about_inputs(described: Mapping[str, Any]) -> str:
    columns = described.get("columns")
    missing = "; NaN stands for a missing value" if described.get("missing_values") else ""
    return (f", the columns in this order: {_listed(columns)}" if columns else "") + missing


def _about_outputs(described: Mapping[str, Any]) -> str:
    if described.get("meaning") == "values":
        scaling = described.get("target_scaling")
        back = (
            ""
            if scaling is None
            else (
                f" in its own unit: the network's output times {_listed(scaling['scale'])} plus "
                f"{_listed(scaling['center'])}; not done in safetensors"
            )
        )
        return f", values of the target{back}"
    if described.get("meaning") == "logits":
        classes = described.get("classes")
        names = f", in this order: {_listed(classes)}" if classes else ", numbered from 0"
        names += _about_recalibration(described.get("recalibration"))
        return f", logits of the classes{names} (softmax makes them probabilities)"
    return ""


def _about_recalibration(step: Mapping[str, Any] | None) -> str:
    if step is None:
        return ""
    return (
        f", recalibrated ({step['method']}): the difference d of the network's two logits became "
        f"{step['slope']!r} d + {step['shift']!r}, fitted to held-out samples of all clients; not done in safetensors"
    )


def _about_preprocessing(card: Card) -> list[str]:
    """What is done to raw inputs, by whom, and with which numbers."""
    if "preprocessing" not in card.input:
        return []
    lines = ["## Preprocessing", ""]
    steps = card.input["preprocessing"]
    if steps is None:
        return [*lines, "Inputs are taken as they are: none were filled or scaled for training.", ""]
    by = {takes: [f"`{file['file']}`" for file in card.files if file["takes"] == takes] for takes in (_RAW, _AFTER)}
    if "table" in steps:
        lines += [_ABOUT_CELLS, ""]
    else:
        done = "(input - center) / scale in double precision, rounded to the input's type"
        lines += [f"{'A missing value (NaN) becomes fill, then ' if 'fill' in steps else ''}{done}.", ""]
    if by[_RAW]:
        raw = "raw inputs"
        raw += ", texts by their codes" if any("codes" in column for column in steps.get("table", ())) else ""
        raw += ", dates as days since 1970-01-01" if any("parts" in column for column in steps.get("table", ())) else ""
        lines += [f"This is done inside {' and '.join(by[_RAW])}: give {raw}.", ""]
    if by[_AFTER]:
        lines += [f"It is not done inside {' and '.join(by[_AFTER])}, the network that follows: do it first.", ""]
    if "table" in steps:
        return [*lines, *_about_columns(card.input["columns"], steps["table"]), ""]
    names = card.input.get("columns") or [str(i) for i in range(len(steps["center"]))]
    kinds = [kind for kind in ("fill", "center", "scale") if kind in steps]
    what = "column" if len(card.input["shape"]) == 2 else "channel"
    lines += [f"| {what} | {' | '.join(kinds)} |", f"|---{'|---' * len(kinds)}|"]
    for name, *numbers in zip(names, *(steps[kind] for kind in kinds), strict=True):
        lines.append(f"| {shown(name).replace('|', chr(92) + '|')} | {' | '.join(map(repr, numbers))} |")
    return [*lines, ""]


def _about_columns(names: Sequence[str], table: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every column of a table: what it holds and what becomes of its cells; and the codes of texts."""
    units = any(column["unit"] for column in table)
    heads = ["column", "holds", *(["unit"] if units else []), "fill", "center", "scale", "indicator"]
    lines = [_row(heads), f"|{'---|' * len(heads)}"]
    for name, column in zip(names, table, strict=True):
        kind = f"date: {', '.join(column['parts'])}" if "parts" in column else column["kind"]
        facts = [kind, *([column["unit"]] if units else []), column["fill"], column["center"]]
        lines.append(_row([name, *facts, column["scale"], "yes" if column["indicator"] else ""]))
    coded = {name: column for name, column in zip(names, table, strict=True) if "codes" in column}
    if not coded:
        return lines
    lines += ["", "Codes, the numbers that stand for texts in raw inputs (blanks around a text do not count):", ""]
    lines += ["| column | code | text |", "|---|---|---|"]
    for name, column in coded.items():
        lines += [_row([name, code, level]) for level, code in column["codes"].items()]
        other, refused = column["code_of_other"], column["unknown"] == "refuse"
        rest = "any other text" + (" (`parley predict` refuses it)" if refused else "")
        lines += [] if other is None else [_row([name, other, rest])]
        lines.append(_row([name, "NaN", "missing" if other is not None else f"missing, or {rest}"]))
    return lines


def _row(cells: Sequence[object]) -> str:
    return f"| {' | '.join('' if cell is None else _cell(cell) for cell in cells)} |"


def _cell(value: object) -> str:
    return shown(value).replace("|", chr(92) + "|") if isinstance(value, str) else repr(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names))


def _signature(tensor: Tensor) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": ["batch", *tensor.shape[1:]]}


def _shape(signature: Mapping[str, Any]) -> str:
    return f"[{', '.join(map(str, signature['shape']))}]"


def _fingerprint(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"bytes": len(content), "sha256": sha256(content).hexdigest()}

"""A node's own samples: read where they lie, described in a few words, and brought to what the federation agreed on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from parley.core import plugins
from parley.core.errors import InputError, WireError
from parley.core.key import Key
from parley.core.text import shown
from parley.data import ClientData, DataInfo, Federation
from parley.data.checks import SampleForm
from parley.data.fingerprint import data_digest
from parley.data.local.folder import SUFFIXES, open_files
from parley.data.local.images import open_images
from parley.data.local.tables import cells_of
from parley.data.schema import Schema
from parley.data.sources import HeldOut, InMemory
from parley.deploy.settings import NodeSettings

_MOST = 100_000
"""Columns or classes that a description may name."""
_DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.float64, torch.int64)}


@dataclass(frozen=True)
class OwnData:
    """Samples to train on, those held out, and what they are."""

    train: ClientData
    test: ClientData | None
    info: DataInfo
    skipped: tuple[str, ...] = ()
    """Rows that could not be read, a sentence each; they stay here."""

    def fingerprint(self, key: bytes = b"") -> str:
        """The same for the same samples; with a key of the node's nobody else can tell whether a guess is right."""
        return blake2b(data_digest(self.train) + data_digest(self.test), digest_size=16, key=key).hexdigest()


def load_data(settings: NodeSettings, base: Path) -> OwnData:
    """The samples that the settings name; an InputError says what is wrong with them."""
    if settings.data is None:
        raise InputError("this node has no data yet: set data in its node.toml, or give --data.")
    paths = [settings.data, *([settings.test] if settings.test is not None else [])]
    read, info, skipped = _read(paths, settings, base)
    train, test = read[0], read[1] if len(read) > 1 else None
    if test is None and settings.test_fraction > 0:
        whole, key = InMemory((train,)), Key(0).fold("held out", settings.name)
        sides = [HeldOut(whole, settings.test_fraction, key, side) for side in ("train", "test")]
        train, test = sides[0].load(0), sides[1].load(0)
    return OwnData(train, test if test is not None and len(test) else None, replace(info, name="node"), skipped)


def _read(
    names: Sequence[str], settings: NodeSettings, base: Path
) -> tuple[list[ClientData], DataInfo, tuple[str, ...]]:
    """Samples of each place, what they are, and the rows that were skipped."""
    if plugins.is_file_name(settings.data):
        return _from_code([plugins.beside(file, base) for file in names], settings)
    paths = [(base / file).expanduser() for file in names]
    for path in paths:
        if not path.exists():
            raise InputError(f"there are no data at '{shown(path)}'.")
    if all(path.is_dir() for path in paths):
        named = {str(number): path for number, path in enumerate(paths)}
        images, _, info = open_images(named, "node", None, False, paths[0])
        return [images.load(number) for number in range(len(paths))], info, ()
    if any(path.suffix.lower() not in SUFFIXES for path in paths):
        raise InputError(
            f"'{shown(paths[0])}' is neither a folder of images by class nor one of {', '.join(SUFFIXES)}."
        )
    files = open_files(
        tuple(paths),
        "node",
        settings.target,
        settings.kind,
        settings.dtype,
        cells_of(settings.missing, settings.categories, settings.dates, settings.on_error),
    )
    skipped = tuple(sentence for rows in files.skipped for sentence in rows)
    return [files.load(number) for number in range(len(paths))], files.info, skipped


def _from_code(names: Sequence[str], settings: NodeSettings) -> tuple[list[ClientData], DataInfo, tuple[str, ...]]:
    """What functions of the owner's return: data frames with a target column, or arrays (x, y)."""
    loaded = [plugins.from_file(name)() for name in names]
    if all(isinstance(frame_or_pair, tuple) for frame_or_pair in loaded):
        federation = Federation.from_arrays(
            {str(n): frame_or_pair for n, frame_or_pair in enumerate(loaded)},
            dtype=settings.dtype,
            missing=settings.missing,
        )
    else:
        if settings.target is None:
            raise InputError(f"'{shown(names[0])}' returns a data frame; say which column to predict (target).")
        frames = [_owned(frame_or_pair, str(number)) for number, frame_or_pair in enumerate(loaded)]
        frame = {name: [v for frame_or_pair in frames for v in frame_or_pair[name]] for name in frames[0]}
        federation = Federation.from_frame(
            frame,
            client=_OWNER,
            target=settings.target,
            kind=settings.kind,
            dtype=settings.dtype,
            missing=settings.missing,
            categories=settings.categories,
            dates=settings.dates,
            on_error=settings.on_error,
        )
    return [federation.client(str(number)) for number in range(len(loaded))], federation.info, ()


_OWNER = "parley node"


def _owned(frame: Any, owner: str) -> dict[str, list[Any]]:
    """Columns of a data frame, and one that says whose it is."""
    columns = {str(name): list(frame[name]) for name in (frame.columns if hasattr(frame, "columns") else frame)}
    return columns | {_OWNER: [owner] * len(next(iter(columns.values()), []))}


# --- what is said about them ---


def described(data: OwnData, key: bytes = b"") -> dict[str, Any]:
    """What a node says of its samples when it enrols: sizes, schema, a fingerprint; no sample and no statistic.

    `key`: of the fingerprint.
    """
    form, info = SampleForm.of(data.train), data.info
    return {
        "samples": len(data.train), "test_samples": 0 if data.test is None else len(data.test),
        "shape": list(form.shape), "dtype": str(form.dtype), "target_shape": list(form.target_shape),
        "target_dtype": str(form.target_dtype), "kind": info.kind, "outputs": info.outputs,
        "classes": list(info.classes), "columns": list(info.columns), "vocabulary": info.vocabulary,
        "missing": info.missing, "categories": list(info.categories), "dates": list(info.dates),
        "fingerprint": data.fingerprint(key),
    }  # fmt: skip


def check_described(description: Any) -> dict[str, Any]:
    """A description that came over the wire, if it is one; a WireError says what is wrong with it."""
    if not isinstance(description, dict):
        raise WireError("there is no description of its data.")
    whole = ("samples", "test_samples", "outputs", "vocabulary")
    if (
        any(type(description.get(name)) is not int or not 0 <= description[name] < 2**40 for name in whole)
        or description["samples"] < 1
    ):
        raise WireError("the numbers of its description are none.")
    lists = {"shape": int, "target_shape": int} | dict.fromkeys(("classes", "columns", "categories", "dates"), str)
    for name, kind in lists.items():
        values = description.get(name)
        if not isinstance(values, list) or len(values) > _MOST or any(type(value) is not kind for value in values):
            raise WireError(f"'{name}' of its description is not what it should be.")
        if kind is str and any(value != value.encode("utf-8", "replace").decode() for value in values):
            raise WireError(f"'{name}' of its description has half of a character.")
    if description.get("dtype") not in _DTYPES or description.get("target_dtype") not in _DTYPES:
        raise WireError("its description names an unknown type of numbers.")
    if type(description.get("missing")) is not bool:
        raise WireError("its description does not say whether values may be missing.")
    if description.get("kind") not in ("classification", "regression", "text") or not isinstance(
        description.get("fingerprint"), str
    ):
        raise WireError("its description says neither what the data are for nor their fingerprint.")
    return dict(description)


def schema_of(description: Mapping[str, Any]) -> Schema:
    """The schema in a description."""
    shape, target_shape, columns, classes = (
        tuple(description[name]) for name in ("shape", "target_shape", "columns", "classes")
    )
    return Schema(
        description["kind"], shape, description["dtype"].removeprefix("torch."), target_shape, columns, classes
    )


def agreed(descriptions: Mapping[str, Mapping[str, Any]]) -> tuple[DataInfo, SampleForm]:
    """What all nodes have in common; an InputError says who differs, and in what.

    Named classes are numbered alphabetically over all nodes; numbered ones are as many as the largest node needs.
    Columns may come in any order, that of the first node counts.
    """
    (first, reference), *others = descriptions.items()
    for name, other in others:
        for what in ("kind", "shape", "dtype", "target_shape", "target_dtype"):
            if reference[what] != other[what]:
                raise InputError(
                    f"node '{name}' has {what} = {other[what]}, but '{first}' has {reference[what]}; all need the same."
                )
        if sorted(reference["columns"]) != sorted(other["columns"]):
            odd = sorted(set(reference["columns"]) ^ set(other["columns"]))[:3]
            raise InputError(f"nodes '{first}' and '{name}' do not have the same columns: {', '.join(odd)}.")
        if odd := sorted(set(reference["categories"]) ^ set(other["categories"])):
            raise InputError(f"of nodes '{first}' and '{name}' only one has texts in the column '{odd[0]}'.")
        if odd := sorted(set(reference["dates"]) ^ set(other["dates"])):
            raise InputError(f"of nodes '{first}' and '{name}' only one has dates in the column '{odd[0]}'.")
        if bool(reference["classes"]) != bool(other["classes"]):
            raise InputError(f"of nodes '{first}' and '{name}' one has named classes and the other numbers.")
    classes = tuple(sorted({label for each in descriptions.values() for label in each["classes"]}))
    outputs = len(classes) or max(each["outputs"] for each in descriptions.values())
    vocabulary = max(each["vocabulary"] for each in descriptions.values())
    info = DataInfo(
        "deployment",
        tuple(reference["shape"]),
        outputs,
        reference["kind"],
        classes,
        vocabulary=vocabulary,
        columns=tuple(reference["columns"]),
        missing=any(each["missing"] for each in descriptions.values()),
        categories=tuple(reference["categories"]),
        dates=tuple(reference["dates"]),
    )
    form = SampleForm(
        torch.Size(reference["shape"]),
        _DTYPES[reference["dtype"]],
        torch.Size(reference["target_shape"]),
        _DTYPES[reference["target_dtype"]],
    )
    return info, form


_NUMBERS = ("target_center", "target_scale", "class_weights")


def info_to_json(info: DataInfo) -> dict[str, Any]:
    """What was agreed on, as nodes are told; of their own data, with the levels of texts, as nodes keep it."""
    return asdict(replace(info, scaling=None)) | {"scaling": None}


def info_from_json(description: Mapping[str, Any]) -> DataInfo:
    """The same back; a WireError if it is none."""
    try:
        lists = {name: tuple(description[name]) for name in ("shape", "classes", "columns", "categories", "dates")}
        numbers = {name: tuple(map(float, description[name])) for name in _NUMBERS}
        levels = tuple(map(tuple, description["levels"]))
        info = DataInfo(**{**description, **lists, **numbers, "scaling": None, "levels": levels})
    except (TypeError, KeyError, ValueError, InputError) as error:
        raise WireError(f"what the federation agreed on cannot be read: {error}") from None
    for name, least in (("outputs", 1), ("vocabulary", 0)):
        if type(getattr(info, name)) is not int or not least <= getattr(info, name) <= _MOST:
            raise WireError(f"the federation agreed on {name} that no data have.")
    if len(info.classes) > _MOST or len(info.columns) > _MOST or len(info.classes) not in (0, info.outputs):
        raise WireError("the federation agreed on columns or classes that no data have.")
    for name in _NUMBERS:
        values = getattr(info, name)
        if len(values) not in (0, info.outputs) or not all(map(math.isfinite, values)):
            raise WireError(f"the federation agreed on a {name} that no data have.")
    return info


def fitted(data: ClientData, info: DataInfo, common: DataInfo) -> ClientData:
    """A node's samples with the columns and classes that the federation agreed on."""
    if (info.kind, info.shape) != (common.kind, common.shape) or sorted(info.columns) != sorted(common.columns):
        raise WireError("the federation agreed on data of another form than this node has.")
    if set(info.categories) != set(common.categories):
        raise WireError("the federation agreed on other columns of texts than this node has.")
    if set(info.dates) != set(common.dates):
        raise WireError("the federation agreed on other columns of dates than this node has.")
    if any(getattr(common, name) for name in (*_NUMBERS, "levels")):  # class weights would single out a class
        raise WireError("the federation agreed on what preprocessing sets, and owners approve.")
    x, y = data.x, data.y
    if info.columns != common.columns:
        x = x[:, torch.tensor([info.columns.index(name) for name in common.columns])]
    if info.classes != common.classes:
        if not set(info.classes) <= set(common.classes):
            raise WireError("the federation agreed on classes among which this node's are not.")
        y = torch.tensor([common.classes.index(name) for name in info.classes])[y]
    if common.kind == "regression" and info.outputs != common.outputs:
        raise WireError(f"the federation agreed on {common.outputs} targets, but this node has {info.outputs}.")
    if common.kind != "regression" and info.outputs > common.outputs:
        raise WireError(f"the federation agreed on {common.outputs} classes, but this node has {info.outputs}.")
    return ClientData(x, y)

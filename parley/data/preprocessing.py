"""Shared preprocessing: what was agreed on before training, done by every client to its samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import isfinite

import torch

from parley.core.errors import InputError, nearest
from parley.core.show import Brief
from parley.core.text import shown
from parley.data.client import ClientData
from parley.data.columns import Column, check_table
from parley.data.encoding import Encoding
from parley.data.federation import Federation
from parley.data.scaling import Scaling
from parley.data.sources import TargetScaling


@dataclass(frozen=True, repr=False)
class Preprocessing(Brief):
    """The same preprocessing of every client's samples, as `parley stats --freeze` writes it."""

    center: tuple[float, ...] = ()
    """Subtracted from each input column (of images: channel)."""
    scale: tuple[float, ...] = ()
    """Divisor of each column, after that."""
    fill: tuple[float, ...] = ()
    """Replaces missing values before that; without it they stay missing."""
    columns: tuple[str, ...] = ()
    """Names of these columns, if columns have names; columns are matched by name."""
    classes: tuple[str, ...] = ()
    """The label map: class names in the order of their numbers; without it classes are numbered as in the data."""
    samples: int = 0
    """Number of samples behind these numbers."""
    table: dict[str, Column] = field(default_factory=dict)
    """In place of center, scale, fill and columns: kind and encoding of each column of a table, by name."""
    target_center: tuple[float, ...] = ()
    """Subtracted from the regression target for training; predictions, exports and metrics undo it, losses do not."""
    target_scale: tuple[float, ...] = ()
    """Divisor of the target, after that."""
    class_weights: tuple[float, ...] = ()
    """By which the loss of a sample of each class is multiplied, in training and evaluation."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name not in ("samples", "table"):
                object.__setattr__(self, each.name, tuple(getattr(self, each.name)))
        check_table(self.table)
        if self.table and self.center:
            raise InputError("table and center cannot both be given; the columns of table have their own.")
        if len(self.target_center) != len(self.target_scale) or any(not value > 0 for value in self.target_scale):
            raise InputError("target_center and target_scale need as many numbers as each other, scales above 0.")
        if any(not value > 0 for value in self.class_weights):
            raise InputError("class_weights must hold positive numbers.")
        for name in ("center", "scale", "fill", "target_center", "target_scale", "class_weights"):
            values = getattr(self, name)
            if any(not isfinite(value) for value in values):
                raise InputError(f"{name} must hold finite numbers.")
            if name in ("center", "scale") and len(values) != len(self.center):
                raise InputError(f"center has {len(self.center)} numbers and {name} {len(values)}.")
        if self.fill and len(self.fill) != len(self.center):
            raise InputError(f"center has {len(self.center)} numbers and fill {len(self.fill)}.")
        if any(value <= 0 for value in self.scale):
            raise InputError("scale must hold positive numbers.")
        if self.columns and len(self.columns) != len(self.center):
            raise InputError(f"there are {len(self.columns)} columns and {len(self.center)} numbers of center.")
        for name in ("columns", "classes"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise InputError(f"{name} has a name twice.")

    @property
    def known(self) -> bool:
        """Whether all was found out that has to be."""
        return all(column.known for column in self.table.values())

    def apply(self, federation: Federation) -> Federation:
        """The federation as clients preprocess it; refuses samples of another form than the numbers are for."""
        if self.classes:
            federation = relabelled(federation, self.classes)
        if self.target_scale:
            federation = with_scaled_targets(federation, TargetScaling(self.target_center, self.target_scale))
        if self.class_weights:
            federation = with_class_weights(federation, self.class_weights)
        if self.table:
            return federation.scaled(self._encoding(federation))
        return federation.scaled(self._scaling(federation)) if self.center else federation

    def _encoding(self, federation: Federation) -> Encoding:
        info = federation.info
        held_in = dict.fromkeys(info.categories, "texts") | dict.fromkeys(info.dates, "dates")
        table = {name: column.of(held_in.get(name, "numbers"), name) for name, column in self.table.items()}
        encoding = Encoding.of(table, info.columns, info.name)
        for name, column in table.items():
            held = held_in.get(name, "numbers")
            if column.holds != held:
                advice = {"texts": "name it in categories", "dates": "name it in dates"}.get(column.holds)
                advice = advice or f'say kind = "{"categorical" if held == "texts" else "date"}"'
                raise InputError(
                    f"preprocessing.table says that column '{shown(name)}' holds {column.holds}, but the data have "
                    f"{held} there; {advice}."
                )
        return encoding

    def _scaling(self, federation: Federation) -> Scaling:
        """In the order of the federation's columns."""
        info = federation.info
        if info.kind == "text":
            raise InputError(f"'{info.name}' holds token ids, to which preprocessing.center cannot be applied.")
        many = info.shape[0] if info.shape else 0
        if many != len(self.center):
            what = "columns" if len(info.shape) == 1 else "channels"
            raise InputError(
                f"preprocessing.center has {len(self.center)} numbers, but '{info.name}' has {many} {what}."
            )
        order = list(range(many))
        if self.columns and info.columns:
            indices = {name: index for index, name in enumerate(self.columns)}
            if (odd := next((name for name in info.columns if name not in indices), None)) is not None:
                raise InputError(
                    f"'{info.name}' has the column '{shown(odd)}', which is not among preprocessing.columns: "
                    f"{nearest(odd, indices)}"
                )
            order = [indices[name] for name in info.columns]
        center, scale, fill = (
            tuple(values[index] for index in order) if values else () for values in (self.center, self.scale, self.fill)
        )
        return Scaling(center, scale, self.samples, 0, fill)


def with_scaled_targets(federation: Federation, scaling: TargetScaling) -> Federation:
    """The federation with (y - center) / scale in place of its regression targets y."""
    info, many = federation.info, len(scaling.scale)
    if info.kind != "regression" or info.outputs != many:
        raise InputError(
            f"preprocessing.target_scale has {many} number{'s' * (many != 1)}, but '{info.name}' has {info.targets}."
        )
    held_out, test = federation.held_out, federation.test
    return Federation(
        replace(info, target_center=scaling.center, target_scale=scaling.scale),
        federation.ids,
        federation.source.with_targets(scaling),
        held_out=None if held_out is None else held_out.with_targets(scaling),
        test=None if test is None else ClientData(test.x, scaling.apply(test.y)),
        public=federation.public,
    )


def with_class_weights(federation: Federation, weights: tuple[float, ...]) -> Federation:
    """The federation with weights of its classes, which the training loss takes from there."""
    info, many = federation.info, len(weights)
    if info.kind != "classification" or info.outputs != many:
        raise InputError(f"preprocessing.class_weights has {many} numbers, but '{info.name}' has {info.targets}.")
    return Federation(
        replace(info, class_weights=weights),
        federation.ids,
        federation.source,
        held_out=federation.held_out,
        test=federation.test,
        public=federation.public,
    )


def relabelled(federation: Federation, classes: Sequence[str]) -> Federation:
    """The federation with classes numbered in this order, by name; those without names are called by their number.

    All classes that clients may have must be among them; there may be more.
    """
    info = federation.info
    if info.kind != "classification":
        raise InputError(f"'{info.name}' is no classification, so it has no classes to number.")
    named = info.classes or tuple(map(str, range(info.outputs)))
    numbers_of = {name: number for number, name in enumerate(classes)}
    if (unknown := next((name for name in named if name not in numbers_of), None)) is not None:
        raise InputError(
            f"'{info.name}' has the class '{shown(unknown)}', which is not in the label map, preprocessing.classes: "
            f"{nearest(unknown, numbers_of)}"
        )
    numbers = torch.tensor([numbers_of[name] for name in named])
    source, held_out, test = federation.source, federation.held_out, federation.test
    if numbers.tolist() != list(range(len(named))):
        source = source.relabelled(numbers)
        held_out = None if held_out is None else held_out.relabelled(numbers)
        test = None if test is None else ClientData(test.x, numbers[test.y])
    info = replace(info, classes=tuple(classes), outputs=len(classes))
    return Federation(info, federation.ids, source, held_out=held_out, test=test, public=federation.public)

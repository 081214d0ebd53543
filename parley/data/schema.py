"""What clients' data look like, and in what they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from parley.core.errors import InputError
from parley.core.text import shown
from parley.data.checks import SampleForm
from parley.data.client import DataInfo
from parley.data.convert import Precision
from parley.data.local.folder import client_files, open_files
from parley.data.local.labels import Task
from parley.data.local.tables import Cells

_NAMED = 5
"""Columns or classes that a sentence names."""


@dataclass(frozen=True)
class Schema:
    """One client's data without the data."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    target_shape: tuple[int, ...]
    columns: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    target: str = ""
    """The column to predict, where columns have names and it is known."""

    @classmethod
    def of(cls, info: DataInfo, form: SampleForm, target: str = "") -> Schema:
        dtype = str(form.dtype).removeprefix("torch.")
        return cls(info.kind, tuple(form.shape), dtype, tuple(form.target_shape), info.columns, info.classes, target)


@dataclass(frozen=True)
class SchemaDifference:
    """In what a client differs from most others: the end of a sentence about it."""

    client: str
    what: str
    harmless: bool
    """Training can proceed: columns are found by name, classes numbered over all clients."""


def schema_differences(schemas: Mapping[str, Schema | str]) -> list[SchemaDifference]:
    """What clients differ in, by client; a text in place of a schema says why there is none."""
    known = {client: schema for client, schema in schemas.items() if isinstance(schema, Schema)}
    differences = [
        SchemaDifference(client, schema, False) for client, schema in schemas.items() if isinstance(schema, str)
    ]
    if not known:
        return differences
    columns = Counter(name for schema in known.values() for name in schema.columns)
    common = [name for name, count in columns.items() if 2 * count > len(known)]
    order = Counter(schema.columns for schema in known.values()).most_common(1)[0][0]
    classes = sorted({name for schema in known.values() for name in schema.classes})
    for client, schema in known.items():
        if lacking := [name for name in common if name not in schema.columns]:
            differences.append(SchemaDifference(client, f"lacks {_named('column', lacking)}", False))
        if extra := [name for name in schema.columns if name not in common]:
            differences.append(SchemaDifference(client, f"alone has {_named('column', extra)}", False))
        if not lacking and not extra and schema.columns != order:
            differences.append(SchemaDifference(client, "has its columns in another order", True))
        differences += [SchemaDifference(client, what, False) for what in _odd(schema, known.values(), bool(columns))]
        if schema.classes and (lacking := [name for name in classes if name not in schema.classes]):
            differences.append(SchemaDifference(client, f"has no sample of {_named('class', lacking)}", True))
    return differences


def folder_schemas(
    folder: Path,
    target: str | None,
    kind: Task | None,
    precision: Precision | None,
    cells: Cells,
) -> dict[str, Schema | str]:
    """The schema of every file of a folder, each read by itself; a sentence for those that cannot be read."""
    schemas: dict[str, Schema | str] = {}
    files, ids = client_files(folder)
    for file, client in zip(files, ids, strict=True):
        try:
            source = open_files((file,), client, target, kind, precision, cells)
            schemas[client] = Schema.of(source.info, source.common, source.reader.target or "")
        except InputError as error:
            schemas[client] = f"cannot be read: {str(error).rstrip('.')}"
    return schemas


def _odd(schema: Schema, all_: Iterable[Schema], tables: bool) -> Iterator[str]:
    """The other things in which a client is not like most."""
    others = list(all_)
    for name, what in (
        ("kind", "is for {}, most are for {}"),
        ("target", "predicts '{}', most predict '{}'"),
        ("dtype", "has inputs of {}, most have {}"),
        ("shape", "has inputs of shape {}, most have {}"),
        ("target_shape", "has targets of shape {}, most have {}"),
    ):
        usual = Counter(getattr(other, name) for other in others).most_common(1)[0][0]
        if getattr(schema, name) != usual and not (name == "shape" and tables):
            yield what.format(_text(getattr(schema, name)), _text(usual))
    if schema.kind == "classification":
        usual = Counter(bool(other.classes) for other in others).most_common(1)[0][0]
        if bool(schema.classes) != usual:
            yield "has numbers for classes, most have names" if usual else "has names for classes, most have numbers"


def _text(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else shown(value)


def _named(what: str, names: list[str]) -> str:
    plural = {"class": "classes"}.get(what, f"{what}s")
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"the {what if len(names) == 1 else plural} {', '.join(map(shown, names[:_NAMED]))}{rest}"

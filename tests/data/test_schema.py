"""Schema differences between clients: who lacks what, and whether it matters."""

from __future__ import annotations

from pathlib import Path

import pytest

from parley.data.local.tables import Cells
from parley.data.schema import Schema, folder_schemas, schema_differences

USUAL = Schema("classification", (2,), "float32", (), ("age", "dose"), ("ill", "well"), "label")


def told(**others: Schema | str) -> dict[str, list[tuple[str, bool]]]:
    found: dict[str, list[tuple[str, bool]]] = {}
    for one in schema_differences({"a": USUAL, "b": USUAL, "c": USUAL} | others):
        found.setdefault(one.client, []).append((one.what, one.harmless))
    return found


def other(**changes: object) -> Schema:
    return Schema(**(vars_of(USUAL) | changes))  # type: ignore[arg-type]


def vars_of(schema: Schema) -> dict[str, object]:
    return {name: getattr(schema, name) for name in schema.__dataclass_fields__}


def test_clients_that_are_alike_differ_in_nothing():
    assert told() == {}
    assert schema_differences({}) == []


@pytest.mark.parametrize(
    ("changes", "what", "harmless"),
    [
        ({"columns": ("age",), "shape": (1,)}, "lacks the column dose", False),
        ({"columns": ("age", "dose", "sex"), "shape": (3,)}, "alone has the column sex", False),
        ({"columns": ("dose", "age")}, "has its columns in another order", True),
        ({"kind": "regression", "classes": ()}, "is for regression, most are for classification", False),
        ({"target": "outcome"}, "predicts 'outcome', most predict 'label'", False),
        ({"dtype": "float64"}, "has inputs of float64, most have float32", False),
        ({"target_shape": (2,)}, "has targets of shape [2], most have []", False),
        ({"classes": ("ill",)}, "has no sample of the class well", True),
        ({"classes": ()}, "has numbers for classes, most have names", False),
    ],
)
def test_each_difference_is_a_sentence(changes, what: str, harmless: bool):
    assert (what, harmless) in told(odd=other(**changes))["odd"]
    assert set(told(odd=other(**changes))) == {"odd"}


def test_many_names_are_cut_and_arrays_have_shapes():
    wide = other(columns=tuple(f"c{i}" for i in range(9)), shape=(9,))
    assert ("alone has the columns c0, c1, c2, c3, c4 and 4 more", False) in told(odd=wide)["odd"]
    arrays = {
        name: Schema("regression", shape, "float32", ()) for name, shape in zip("abc", [(2,), (2,), (3,)], strict=True)
    }
    assert [(one.client, one.what) for one in schema_differences(arrays)] == [
        ("c", "has inputs of shape [3], most have [2]")
    ]


def test_a_folder_is_read_file_by_file(tmp_path: Path):
    for name, text in {
        "a": "age,dose,label\n1,2,ill\n3,4,well\n",
        "b": "dose,age,label\n1,2,ill\n",
        "c": "age,label\n1,well\n",
        "d": "age,dose,label\n1,often,ill\n",
        "e": "age,dose,label\n1,2,ill\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
    found = schema_differences(folder_schemas(tmp_path, None, None, None, Cells()))
    said = {(one.client, one.what.partition(" '")[0]): one.harmless for one in found}
    assert said[("b", "has its columns in another order")]
    assert not said[("c", "lacks the column dose")]
    (broken,) = [one for one in found if one.client == "d"]
    assert "line 2, column 'dose'" in broken.what
    assert "holds 'often'; inputs must be numbers" in broken.what

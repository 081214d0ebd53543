"""Columns of tables: fitted from what clients tell, encoded as scikit-learn does with pooled rows."""

from __future__ import annotations

from datetime import date, datetime

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import parley as pl
from parley.cli.stats import notes
from parley.core.errors import InputError
from parley.data.columns import coded, level_of
from parley.data.dates import WEEKDAYS, calendar, day_of, rounded_down
from parley.data.encoding import Encoder, Encoding
from parley.secure import SecureSum
from parley.statistics.levels import packed, unpacked

NUMBERS, TEXTS = ["age", "dose"], ["pain", "stage"]


def patients(rows: int = 240, gaps: float = 0.1, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(60, 10, rows).round(1),
            "dose": rng.gamma(2.0, 3.0, rows),
            "pain": rng.choice(["none", "mild", "severe", "odd"], rows, p=[0.4, 0.3, 0.28, 0.02]),
            "stage": rng.choice(["I", "II", "III"], rows),
            "site": rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2]),
        }
    )
    frame["ill"] = np.where(frame.age + 5 * (frame.pain == "severe") + rng.normal(0, 5, rows) > 62, "yes", "no")
    for name in NUMBERS + TEXTS:
        frame.loc[rng.random(rows) < gaps, name] = None
    return frame


def federation(frame: pd.DataFrame, **more) -> pl.Federation:
    more = {"missing": True, "categories": TEXTS, "dtype": "float64"} | more
    return pl.Federation.from_frame(frame, client="site", target="ill", **more)


def pooled(data: pl.Federation) -> np.ndarray:
    return torch.cat([data.client(id).x for id in data.ids]).numpy()


def test_one_hot_filled_and_scaled_columns_are_those_of_scikit_learn_on_pooled_rows():
    frame = patients()
    data = federation(frame)
    found = pl.statistics(data, floor=1, runtime="inline")
    agreed = found.preprocessing("standard", "mean", {"pain": pl.Column("categorical", least=20)})
    numbers = make_pipeline(SimpleImputer(strategy="mean"), StandardScaler())
    # Federated means are of values that are there; scikit-learn scales after filling, so deviations are compared apart.
    hot = OneHotEncoder(min_frequency=20, sparse_output=False)
    texts = make_pipeline(SimpleImputer(strategy="most_frequent", missing_values=None), hot)
    order = pd.concat([frame[frame.site == site] for site in data.ids])
    order[TEXTS] = order[TEXTS].astype(object).where(order[TEXTS].notna(), None)
    theirs = ColumnTransformer([("numbers", numbers, NUMBERS), ("pain", texts, ["pain"])]).fit_transform(order)
    ours = pooled(agreed.apply(data))
    names = agreed.apply(data).info.columns
    assert names == (
        "age",
        "dose",
        "pain_mild",
        "pain_none",
        "pain_severe",
        "pain_other",
        "stage_I",
        "stage_II",
        "stage_III",
        "stage_other",
    )
    for place, name in enumerate(NUMBERS):
        deviation = order[name].std(ddof=0)
        filled = order[name].fillna(order[name].mean()).to_numpy()
        np.testing.assert_allclose(ours[:, place], (filled - order[name].mean()) / deviation, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(ours[:, place] * deviation / filled.std(), theirs[:, place], atol=1e-12)
    np.testing.assert_array_equal(ours[:, 2:6], theirs[:, 2:])
    assert found.levels["pain"] == frame.pain.value_counts().sort_index().to_dict()


@pytest.mark.parametrize("runtime", ["inline", "pool", "wire"])
def test_the_levels_do_not_depend_on_the_partition_or_the_runtime(runtime: str):
    frame = patients()
    one = frame.assign(site="all")
    agreed = [
        pl.statistics(federation(each), floor=1, runtime=runtime, workers=1).preprocessing("standard", "mean")
        for each in (frame, one)
    ]
    assert agreed[0].table == agreed[1].table


def test_levels_below_the_floor_are_not_told_nor_are_those_that_would_give_them_away():
    frame = patients(gaps=0.0)
    found = pl.statistics(federation(frame), floor=10, runtime="inline")
    assert "odd" not in found.levels["pain"]
    for site in "abc":
        counts = frame[frame.site == site].pain.value_counts()
        told = sum(counts[counts >= 10])
        assert counts.sum() - told == 0 or sum(found.levels["pain"].values()) < len(frame)
    # With one client, what is left out is at least the floor.
    alone = pl.statistics(federation(frame.assign(site="a")), floor=10, runtime="inline").levels["pain"]
    assert len(frame) - sum(alone.values()) >= 10


def test_a_few_missing_cells_hide_no_level():
    frame = patients(gaps=0.0)
    frame = frame[frame.pain != "odd"]
    frame.loc[frame.index[:3], "pain"] = None
    found = pl.statistics(federation(frame), floor=10, runtime="inline")
    assert found.levels["pain"] == frame.pain.value_counts().sort_index().to_dict()
    assert found.rare_levels == {"pain": 0, "stage": 0}


def test_it_is_said_how_many_samples_the_levels_lack():
    frame = patients()
    found = pl.statistics(federation(frame), floor=10, runtime="inline")
    lacking = int(frame.pain.notna().sum()) - sum(found.levels["pain"].values())
    assert found.rare_levels["pain"] >= lacking > 0  # with missing cells that hide rare levels
    assert any(f"levels of {found.rare_levels['pain']} samples in 'pain'" in sentence for sentence in notes(found))


def test_the_kind_of_a_column_is_by_default_what_the_data_hold():
    frame = patients(gaps=0.0)
    found = pl.statistics(federation(frame), floor=1, runtime="inline")
    table = {
        "pain": pl.Column(levels=("none", "mild")),
        "stage": pl.Column(unknown="refuse"),
        "age": pl.Column(unit="y"),
    }
    kinds = {name: column.kind for name, column in found.preprocessing("standard", table=table).table.items()}
    assert kinds == {"age": "numeric", "dose": "numeric", "pain": "categorical", "stage": "categorical"}
    for wrong in (
        {"age": pl.Column(levels=("1",))},
        {"pain": pl.Column(impute="mean")},
        {"dose": pl.Column(since="2020-01-01")},
    ):
        with pytest.raises(InputError, match=f"column '{next(iter(wrong))}' holds .*: "):
            found.preprocessing("standard", table=wrong)


def test_declared_levels_are_counted_by_secure_sums_and_others_are_refused():
    frame, declared = patients(gaps=0.0), {"pain": ("none", "mild", "severe"), "stage": ("I", "II", "III")}
    table = {name: pl.Column("categorical", levels=levels) for name, levels in declared.items()}
    study = pl.Study(
        pl.FedAvg(),
        federation(frame),
        model=pl.models.linear(),
        channels=[SecureSum()],
        preprocessing=pl.Preprocessing(table=table | {name: pl.Column() for name in NUMBERS}),
    )
    found = pl.statistics(study, floor=1, runtime="inline")
    assert found.levels["stage"] == frame.stage.value_counts().sort_index().to_dict()
    assert found.preprocessing("standard", table=table).table["pain"].levels == declared["pain"]
    with pytest.raises(InputError, match="levels of column 'pain' can only be asked for client by client"):
        pl.statistics(federation(frame), quantiles="cells", runtime="inline")


def test_ordinal_columns_are_places_in_their_order():
    frame = patients(gaps=0.1)
    data = federation(frame)
    order = ("I", "II", "III")
    agreed = pl.statistics(data, floor=1, runtime="inline").preprocessing(
        "standard", "median", {"stage": pl.Column("ordinal", levels=order, indicator=True)}
    )
    places = frame.stage.map({name: place for place, name in enumerate(order)})
    column = agreed.table["stage"]
    assert column.center == pytest.approx(places.mean(), rel=1e-12)
    assert column.scale == pytest.approx(places.std(ddof=0), rel=1e-12)
    assert column.fill == places.median()
    made = agreed.apply(data)
    assert made.info.columns[-2:] == ("stage", "stage_missing")
    sorted_rows = pd.concat([places[frame.site == site] for site in data.ids])
    ours = pooled(made)
    np.testing.assert_array_equal(ours[:, -1], sorted_rows.isna())
    np.testing.assert_allclose(ours[:, -2], (sorted_rows.fillna(column.fill) - column.center) / column.scale)


def test_unknown_texts_share_an_input_or_are_refused_without_being_shown():
    table = {"pain": pl.Column("categorical", levels=("mild", "none")), "age": pl.Column(center=1.0, scale=2.0)}
    rows = torch.tensor([[0.0, 3.0], [1.0, 5.0], [2.0, 1.0], [torch.nan, 1.0]], dtype=torch.float64)
    encoding = Encoding.of(table, ("pain", "age"), "t")
    # Levels of the rows: 0 = none, 1 = secret, 2 = mild.
    agreed = encoding.coded(rows, ("pain",), (("none", "secret", "mild"),))
    expected = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 2], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
    assert torch.equal(encoding.apply(agreed), expected)
    assert torch.equal(Encoder(encoding)(agreed), expected)
    strict = Encoding.of(
        table | {"pain": pl.Column("categorical", levels=("mild", "none"), unknown="refuse")}, ("pain", "age"), "t"
    )
    with pytest.raises(InputError, match="column 'pain'") as told:
        strict.coded(rows, ("pain",), (("none", "secret", "mild"),))
    assert "secret" not in str(told.value)


def test_numbers_that_are_names_are_one_level_however_they_are_written():
    assert [level_of(cell) for cell in (1, 1.0, "1", " 1.0 ", "01", True, None, float("nan"), "", "1.5")] == [
        "1",
        "1",
        "1",
        "1",
        "1",
        "True",
        "",
        "",
        "",
        "1.5",
    ]
    codes, levels = coded(["b", "a", None, "b"])
    assert levels == ("a", "b")
    np.testing.assert_array_equal(codes, [1, 0, np.nan, 1])


def test_names_travel_as_bytes_and_come_back():
    names = [["ä", "日本", "plain"], [], ["x" * 65, "y"]]
    assert unpacked(packed(names)) == [names[0], [], ["y"]]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"pain": pl.Column("categorical", levels=("a",))}, "the column 'age', which is not in preprocessing.table"),
        ({"age": pl.Column()}, "column 'age' is encoded was not computed yet"),
        ({name: pl.Column() for name in NUMBERS + TEXTS}, "column 'age' is encoded was not computed yet"),
        (
            {name: pl.Column("numeric", center=0.0, scale=1.0) for name in NUMBERS + TEXTS},
            "'pain' holds numbers, but the data",
        ),
        ({name: pl.Column(center=0.0, scale=1.0) for name in [*NUMBERS, *TEXTS, "ward"]}, "lacks the column 'ward'"),
    ],
)
def test_a_table_that_does_not_fit_the_data_is_refused(table: dict[str, pl.Column], sentence: str):
    with pytest.raises(InputError, match=sentence):
        pl.Preprocessing(table=table).apply(federation(patients()))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"levels": ("a", "a"), "kind": "categorical"}, "a name twice"),
        ({"levels": ("a",), "kind": "numeric"}, "numeric column has no levels"),
        ({"kind": "ordinal"}, "needs its levels"), ({"kind": "numeric", "fill": "x"}, "fill must be a number"),
        ({"kind": "categorical", "levels": ("a",), "fill": "b"}, "one of the levels"), ({"scale": 0.0}, "positive"),
        ({"kind": "categorical", "impute": "mean"}, "has no mean"),
        ({"kind": "numeric", "impute": "most-frequent"}, "for categorical"),
        ({"kind": "categorical", "levels": (" a",)}, "without blanks"), ({"center": float("inf")}, "finite"),
    ],
)  # fmt: skip
def test_settings_of_a_column_that_make_no_sense_are_refused(settings: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        pl.Column(**settings)


def test_methods_refuse_texts_that_nobody_encoded():
    with pytest.raises(InputError, match=r"cannot take columns of texts \(pain, stage\)"):
        pl.train(pl.FedAvg(), federation(patients()), model=pl.models.linear(), rounds=1, runtime="inline")


def visits(rows: int = 120, gaps: float = 0.0, seed: int = 1) -> pd.DataFrame:
    """Patients with the day they came."""
    frame, rng = patients(rows, gaps, seed), np.random.default_rng(seed)
    days = pd.Series(pd.Timestamp("2019-11-20") + pd.to_timedelta(rng.integers(0, 1500, rows), "D"))
    frame.insert(2, "came", days.dt.strftime("%Y-%m-%d").where(rng.random(rows) >= gaps, None))
    return frame


def test_the_calendar_is_that_of_datetime_at_any_time_of_day():
    days = np.concatenate([np.arange(-150_000, 150_000, 7), np.random.default_rng(0).uniform(-7e5, 2.9e6, 5000)])
    found = calendar(torch.from_numpy(days))
    for day, year, month, weekday in zip(
        days, *(found[part].tolist() for part in ("year", "month", "weekday")), strict=True
    ):
        when = date.fromordinal(int(np.floor(day)) + date(1970, 1, 1).toordinal())
        assert (year, month, weekday) == (when.year, when.month, when.weekday())


@pytest.mark.parametrize(
    ("cell", "days"),
    [
        ("1970-01-01", 0), (" 2024-02-29 ", 19782), ("20240229", 19782), ("2024-02-29T12:00", 19782.5),
        ("2024-02-29 18:00:00", 19782.75), ("2024-03-01T01:00:00+02:00", 19783 - 1 / 24), (date(1969, 12, 31), -1),
        (datetime(1970, 1, 2, 6), 1.25), (np.datetime64("2024-02-29"), 19782), (pd.Timestamp("2024-02-29"), 19782),
        (None, np.nan), ("", np.nan), (pd.NaT, np.nan), (np.datetime64("NaT"), np.nan), (float("nan"), np.nan),
    ],
)  # fmt: skip
def test_dates_are_days_since_1970(cell: object, days: float):
    np.testing.assert_allclose(day_of(cell), days, rtol=0, atol=1e-9)


@pytest.mark.parametrize("cell", ["29.02.2024", "2024-02-30", "2024", 20240229, 1.5, "soon", "2024-2-9", True])
def test_what_is_no_date_is_none(cell: object):
    with pytest.raises(ValueError):
        day_of(cell)


def test_a_time_before_midnight_stays_on_its_day_in_single_precision():
    late = day_of("2024-02-29T23:59:59")
    assert np.float32(late) == 19783
    assert np.floor(rounded_down(np.array([late, -0.5]), np.float32)).tolist() == [19782, -1]


def test_parts_of_dates_are_those_of_pandas():
    frame = visits(gaps=0.1)
    data = federation(frame, dates=["came"])
    found = pl.statistics(data, floor=1, runtime="inline")
    parts = pl.Column("date", parts=("days", "year", "month", "weekday"), indicator=True)
    agreed = found.preprocessing("standard", "median", {"came": parts})
    done = agreed.apply(data)
    rows = pd.concat([frame[frame.site == site] for site in data.ids])
    came = pd.to_datetime(rows.came)
    days = (came - pd.Timestamp("1970-01-01")).dt.days
    column = agreed.table["came"]
    assert column.center == pytest.approx(days.mean(), rel=1e-12)
    assert column.scale == pytest.approx(days.std(ddof=0), rel=1e-10)
    filled = came.fillna(pd.Timestamp("1970-01-01") + pd.Timedelta(column.fill, "D"))
    middle = (pd.Timestamp("1970-01-01") + pd.Timedelta(column.center, "D")).year
    wanted = {
        "came_days": (days.fillna(column.fill) - column.center) / column.scale,
        "came_year": (filled.dt.year - middle) / max(column.scale / 365.2425, 1),
        "came_missing": came.isna(),
    }
    wanted |= {f"came_month_{n}": filled.dt.month == n for n in range(1, 13)}
    wanted |= {f"came_weekday_{name}": filled.dt.day_name().str[:3] == name for name in WEEKDAYS}
    ours = dict(zip(done.info.columns, pooled(done).T, strict=True))
    assert set(wanted) == {name for name in ours if name.startswith("came")}
    for name, values in wanted.items():
        np.testing.assert_allclose(ours[name], values.to_numpy().astype(float), atol=1e-9, err_msg=name)


def test_days_are_counted_from_the_date_that_is_given():
    data = federation(visits(), dates=["came"])
    since = pl.Column("date", since="2020-01-01", scaling="none")
    agreed = pl.statistics(data, floor=1, runtime="inline").preprocessing("standard", "median", {"came": since})
    place = agreed.apply(data).info.columns.index("came")
    first = pd.to_datetime(pd.concat([visits()[visits().site == site] for site in data.ids]).came)
    wanted = (first - pd.Timestamp("2020-01-01")).dt.days
    np.testing.assert_array_equal(pooled(agreed.apply(data))[:, place], wanted)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "numeric", "parts": ("year",)}, "parts and since are for dates"),
        ({"kind": "date", "parts": ()}, "parts must be some"),
        ({"kind": "date", "since": "1.1.2020"}, "since must be"), ({"kind": "date", "levels": ("a",)}, "no levels"),
    ],
)  # fmt: skip
def test_settings_of_dates_that_make_no_sense_are_refused(settings: dict, sentence: str):
    with pytest.raises(InputError, match=sentence):
        pl.Column(**settings)


def test_dates_that_nobody_declared_are_refused_with_the_right_hint(tmp_path):
    frame = visits()
    for given in (frame, frame.assign(came=pd.to_datetime(frame.came))):
        with pytest.raises(
            InputError, match=r"row 0, column 'came' .* looks like a date: name columns of dates in dates"
        ):
            federation(given)
    frame.assign(came="3.4.2020").to_csv(tmp_path / "all.csv", index=False)
    with pytest.raises(InputError, match=r"line 2, column 'came' .* holds '3.4.2020', which looks like a date"):
        federation(tmp_path / "all.csv")
    with pytest.raises(
        InputError, match=r"line 2, column 'came' .* holds '3.4.2020', which is no date; write dates as"
    ):
        federation(tmp_path / "all.csv", dates=["came"])
    with pytest.raises(InputError, match="cannot be among both categories and dates"):
        federation(frame, dates=["came", "pain"])
    table = {name: pl.Column("numeric", center=0.0, scale=1.0) for name in [*NUMBERS, "came"]}
    table |= {name: pl.Column("categorical", levels=("a",)) for name in TEXTS}
    agreed, data = pl.Preprocessing(table=table), federation(frame, dates=["came"])
    with pytest.raises(InputError, match="column 'came' holds numbers, but the data have dates there; say kind"):
        agreed.apply(data)

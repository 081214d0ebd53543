"""Covariates that are texts: zeros and ones against a reference, as statsmodels' formulas make them of pooled rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import statsmodels.formula.api as smf
import torch

import parley as pl
from parley.core.errors import InputError
from parley.data.sources import InMemory
from parley.secure import SecureSum
from tests.data.test_encoding import federation, patients, visits

from .conftest import arrays


def frame(gaps: float = 0.05) -> pd.DataFrame:
    return patients(400, gaps).assign(ill=lambda f: (f.ill == "yes").astype(int))


@pytest.mark.parametrize(("model", "fit"), [("logistic", smf.logit), ("gaussian", smf.ols)])
def test_they_are_those_of_statsmodels_on_pooled_rows(model: str, fit):
    table = frame()
    kind = {"kind": "regression"} if model == "gaussian" else {}
    found = pl.analyse(federation(table, **kind), model, covariates=["age", "pain"], floor=1, runtime="inline")
    most = table.pain.value_counts().index[0]
    formula = f"ill ~ age + C(pain, Treatment('{most}'))"
    theirs = fit(formula, table[["ill", "age", "pain"]].dropna()).fit(**({"disp": 0} if model == "logistic" else {}))
    names = {"(intercept)": "Intercept", "age": "age"}
    names |= {
        f"pain[{level}]": f"C(pain, Treatment('{most}'))[T.{level}]"
        for level in {"mild", "none", "severe", "odd"} - {most}
    }
    assert {one.name for one in found.coefficients} == set(names)
    for one in found.coefficients:
        np.testing.assert_allclose(one.estimate, theirs.params[names[one.name]], rtol=1e-7)
        np.testing.assert_allclose(one.error, theirs.bse[names[one.name]], rtol=1e-6)
    assert found.rows == len(table[["ill", "age", "pain"]].dropna())
    assert any(f"'pain' are compared with '{most}'" in text for text in found.notes())


def test_columns_of_texts_that_are_not_asked_for_do_not_matter():
    table = frame(gaps=0.0)
    alone = pl.analyse(federation(table.drop(columns=["pain", "stage"]), categories=()), "logistic", runtime="inline")
    beside = pl.analyse(federation(table), "logistic", covariates=["age", "dose"], runtime="inline")
    np.testing.assert_array_equal(arrays(alone), arrays(beside))


def test_rare_texts_are_left_out_and_said_to_be():
    table = frame(gaps=0.0)
    found = pl.analyse(federation(table), "logistic", covariates=["pain"], floor=20, runtime="inline")
    assert "pain[odd]" not in [one.name for one in found.coefficients]
    assert found.missing == (table.pain == "odd").sum() > 0
    assert any("texts that are none of the levels" in text for text in found.notes())


def test_declared_levels_hold_with_the_first_as_reference_and_under_secure_sums():
    table, levels = frame(gaps=0.0), ("severe", "none", "mild", "odd")
    said = pl.Preprocessing(table={"pain": pl.Column("categorical", levels=levels)})
    data = federation(table.drop(columns="stage"), categories=["pain"])
    studies = [
        pl.Study(pl.FedAvg(), data, model=pl.models.linear(), preprocessing=said, channels=channels)
        for channels in ([], [SecureSum()])
    ]
    asked = {"covariates": ["pain", "age"], "runtime": "inline"}
    plain, secure = (pl.analyse(study, "logistic", **asked) for study in studies)
    assert [one.name for one in plain.coefficients][1:4] == ["pain[none]", "pain[mild]", "pain[odd]"]
    np.testing.assert_array_equal(arrays(plain), arrays(secure))


def test_the_order_of_levels_at_clients_does_not_matter_on_the_wire():
    table = frame(gaps=0.0)
    ways = [
        pl.analyse(federation(table), "logistic", covariates=["pain", "stage"], floor=1, runtime=runtime, workers=1)
        for runtime in ("inline", "wire")
    ]
    np.testing.assert_array_equal(*map(arrays, ways))


def test_dates_are_days(tmp_path: Path):
    table = visits(200).assign(ill=lambda f: (f.ill == "yes").astype(int))
    found = pl.analyse(federation(table, dates=["came"]), "logistic", covariates=["age", "came"], runtime="inline")
    table["days"] = (pd.to_datetime(table.came) - pd.Timestamp("1970-01-01")).dt.days
    theirs = smf.logit("ill ~ age + days", table).fit(disp=0)
    np.testing.assert_allclose(found["came"].estimate, theirs.params["days"], rtol=1e-5)


def test_another_outcome_of_files_leaves_the_former_target_alone(tmp_path: Path):
    (tmp_path / "sites").mkdir()
    table = patients(200, gaps=0.0)
    for site, own in table.groupby("site"):
        own.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    (tmp_path / "study.toml").write_text(
        'rounds = 1\n[data]\nfolder = "sites"\ntarget = "ill"\ncategories = ["pain", "stage"]\n'
        '[model]\nname = "linear"\n[algorithm]\nname = "fedavg"\n'
    )
    found = pl.analyse(pl.load_study(tmp_path / "study.toml"), "gaussian", outcome="dose", covariates=["age", "stage"])
    theirs = smf.ols(f"dose ~ age + C(stage, Treatment('{table.stage.value_counts().index[0]}'))", table).fit()
    np.testing.assert_allclose(sorted(arrays(found)[0]), sorted(theirs.params), rtol=1e-6)


def test_predictions_code_texts_as_the_fit_does():
    table = frame(gaps=0.0)
    data = federation(table)
    levels = {"pain": ("none", "mild", "severe", "odd")}
    method = pl.GLM(covariates=("pain", "age"), levels=levels, family="logistic", floor=1)
    run = pl.train(method, data, rounds=1, runtime="inline")
    rows = table.sort_values("pain").iloc[250:260].drop(columns=["ill", "site"])
    beta = run.state["fit"]["beta"].numpy()
    by_hand = (
        beta[0]
        + sum(beta[1 + k] * (rows.pain == level) for k, level in enumerate(levels["pain"][1:]))
        + beta[4] * rows.age
    )
    np.testing.assert_allclose(run.predict(rows)[:, 1], by_hand, rtol=1e-12)


def test_levels_that_make_no_sense_are_refused():
    with pytest.raises(InputError, match="no two levels to compare"):
        pl.GLM(levels={"pain": ("a", "a")})
    with pytest.raises(InputError, match="column 'pain' holds texts; say which"):
        pl.train(pl.GLM(covariates=("pain",)), federation(frame()), rounds=1, runtime="inline")


def followed(rows: int = 240) -> pd.DataFrame:
    """Times that end with `outcome`; site a has nobody alive, so that its codes of texts are not those of others."""
    rng = np.random.default_rng(3)
    table = pd.DataFrame(
        {
            "arm": rng.choice(["placebo", "drug"], rows),
            "age": rng.normal(60, 10, rows).round(1),
            "outcome": rng.choice(["alive", "dead", "lost"], rows),
            "days": rng.integers(1, 300, rows),
            "site": rng.choice(["a", "b", "c"], rows),
        }
    )
    table.loc[(table.site == "a") & (table.outcome == "alive"), "outcome"] = "dead"
    return table.assign(died=(table.outcome == "dead").astype(int), treated=(table.arm == "drug").astype(int))


def survival(table: pd.DataFrame, *categories: str) -> pl.Federation:
    return pl.Federation.from_frame(
        table, client="site", target="days", kind="regression", missing=True, categories=categories, dtype="float64"
    )


@pytest.mark.parametrize("runtime", ["inline", "wire"])
def test_an_event_is_the_text_that_is_named_for_it(runtime: str):
    table = followed()
    texts = survival(table.drop(columns=["died", "treated"]), "outcome", "arm")
    numbers = survival(table.drop(columns=["outcome", "arm"]))
    more = {"floor": 1, "runtime": runtime, "workers": 1}
    fits = [
        pl.analyse(data, "cox", event=event, covariates=["age"], **more)
        for data, event in ((texts, "outcome=dead"), (numbers, "died"))
    ]
    np.testing.assert_array_equal(*map(arrays, fits))
    assert fits[0].events == table.died.sum()
    named = pl.analyse(texts, "kaplan-meier", event="outcome=dead", by="arm", times="raw", **more)
    coded = pl.analyse(numbers, "kaplan-meier", event="died", by="treated", times="raw", **more)
    assert {name: named[name].steps for name in ("drug", "placebo")} == {
        "drug": coded["1"].steps,
        "placebo": coded["0"].steps,
    }
    reverse = pl.analyse(
        texts, "kaplan-meier", event="outcome=dead", by="arm", groups=["placebo", "drug"], times="raw", **more
    )
    assert [curve.group for curve in reverse.curves] == ["placebo", "drug"]
    assert (reverse["drug"].steps, reverse.p) == (named["drug"].steps, pytest.approx(named.p, rel=1e-9))


def test_codes_of_texts_are_the_nodes_own():
    """The same rows with other numbers for their texts, as a node that has other texts numbers them."""
    table = followed().drop(columns=["died", "treated", "site"])
    method = pl.KaplanMeier(event="outcome=dead", by="arm", groups=("drug", "placebo"), times="raw", floor=1)
    seen = []
    for codes in (("alive", "dead", "lost"), ("dead", "lost", "moved", "alive")):
        info = pl.DataInfo(
            "t",
            (3,),
            1,
            "regression",
            columns=("arm", "age", "outcome"),
            missing=True,
            categories=("arm", "outcome"),
            levels=(("drug", "placebo"), codes),
        )
        numbers = np.stack([(table.arm == "placebo").astype(float), table.age, table.outcome.map(codes.index)], axis=1)
        data = pl.ClientData(torch.from_numpy(numbers), torch.from_numpy(table.days.to_numpy(float)[:, None]))
        run = pl.train(method, pl.Federation(info, ("a",), InMemory((data,))), rounds=1, runtime="inline")
        seen.append({name: value.tolist() for name, value in run.state["curves"].items()})
    assert seen[0] == seen[1]
    assert sum(map(sum, seen[0]["events"])) == (table.outcome == "dead").sum()


def test_a_number_can_mean_an_event():
    table = followed()
    twos = survival(table.drop(columns=["outcome", "arm"]).assign(died=table.died + 1))
    ones = survival(table.drop(columns=["outcome", "arm"]))
    found = [
        pl.analyse(data, "cox", event=event, covariates=["age"], runtime="inline")
        for data, event in ((twos, "died=2"), (ones, "died"))
    ]
    np.testing.assert_array_equal(*map(arrays, found))


@pytest.mark.parametrize("model", ["cox", "kaplan-meier"])
def test_an_event_that_no_text_means_is_refused(model: str):
    data = survival(followed(), "outcome", "arm")
    more = {"times": "raw", "runtime": "inline"} | ({"covariates": ["age"]} if model == "cox" else {})
    for event, sentence in (
        ("outcome", "column 'outcome' holds texts; say which of them is the event, such as outcome=dead"),
        ("outcome=died", "column 'outcome' has no text 'died'"),
        ("died=yes", "column 'died' holds numbers, and 'yes' is none"),
        ("status=dead", "there is no column 'status'"),
    ):
        with pytest.raises(InputError, match=sentence):
            pl.analyse(data, model, event=event, **more)


def test_groups_of_texts_are_named():
    data = survival(followed(), "outcome", "arm")
    with pytest.raises(InputError, match="column 'arm' has no text 'drugs'"):
        pl.analyse(data, "kaplan-meier", event="died", by="arm", groups=["drugs", "placebo"], times="raw")
    with pytest.raises(InputError, match="column 'arm' has no two levels that 200 samples"):
        pl.analyse(data, "kaplan-meier", event="died", by="arm", times="raw", floor=200)
    with pytest.raises(InputError, match="holds texts; say which are the groups"):
        pl.train(pl.KaplanMeier(by="arm"), data, rounds=1, runtime="inline")


def test_curves_of_another_outcome_leave_a_target_of_texts_alone(tmp_path: Path):
    table = followed()
    for site, own in table.groupby("site"):
        (tmp_path / "sites").mkdir(exist_ok=True)
        own.drop(columns="site").to_csv(tmp_path / "sites" / f"{site}.csv", index=False)
    text = 'rounds = 1\n[data]\nfolder = "sites"\ntarget = "{}"\ncategories = [{}]\n[algorithm]\nname = "fedavg"\n'
    asked = {"outcome": "days", "times": "raw", "runtime": "inline"}
    found = {}
    for target, categories in (("outcome", '"arm"'), ("arm", '"outcome"'), ("age", '"outcome", "arm"')):
        (tmp_path / "study.toml").write_text(text.format(target, categories) + '[model]\nname = "linear"\n')
        study = pl.load_study(tmp_path / "study.toml")
        found[target] = pl.analyse(
            study, "kaplan-meier", event="outcome=dead", by="arm", groups=["drug", "placebo"], **asked
        )
        plain = pl.analyse(study, "kaplan-meier", event="died", by="treated", **asked)
        assert plain["1"].steps == found[target]["drug"].steps
    assert found["outcome"].curves == found["arm"].curves == found["age"].curves

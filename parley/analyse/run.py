"""Regressions and survival curves over a study's clients, with what statisticians read off them.

    found = analyse(study, "logistic", covariates=["age", "chol"])
    found["age"].estimate, found["age"].p, found.frame()

The question is a method like any other (`parley.analyse.glm`): every runtime carries it, and owners of nodes consent to
it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
from scipy import stats

from parley.analyse.cox import Cox
from parley.analyse.curves import SurvivalCurves
from parley.analyse.glm import FAMILIES, GLM
from parley.analyse.kaplan_meier import KaplanMeier
from parley.analyse.newton import INTERCEPT, REASONS
from parley.analyse.regression import Regression
from parley.analyse.sites import METRICS, Coefficient, Heterogeneity, LeftOut, Site, heterogeneity, wald
from parley.analyse.tables import data_frame
from parley.analyse.times import ALL_EVENTS, Times
from parley.core.errors import InputError, ParleyError, nearest
from parley.core.show import Brief, as_html
from parley.core.text import csv_text
from parley.core.tree import Tree
from parley.data import Federation
from parley.engine.run import Run
from parley.statistics.run import categories_of, question_study, statistics
from parley.study.data_section import DataSection
from parley.study.study import Study
from parley.study.train import train

if TYPE_CHECKING:
    from pandas import DataFrame

Ties = Literal["efron", "breslow"]
Model = Literal["gaussian", "logistic", "poisson", "gamma", "cox"]
MODELS = (*FAMILIES, "cox", "kaplan-meier")
RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "gamma": "mean ratio", "cox": "hazard ratio"}
"""What e to the coefficient is."""
_UNSET: tuple[Any, ...] = ("", None, False, 0, (), [])


@dataclass(frozen=True, repr=False)
class Analysis(Brief):
    """A fitted regression."""

    title: str
    model: str
    outcome: str
    """What is explained, in words."""
    coefficients: tuple[Coefficient, ...]
    covariance: tuple[tuple[float, ...], ...]
    level: float
    """Of the intervals."""
    rows: int
    """Complete rows in the fit."""
    missing: int
    """Rows left out because a value is missing."""
    events: int
    """Rows of the second class, with counts above 0, or with an event."""
    clients: int
    """That were asked."""
    contributed: int
    """That have enough complete rows to tell of them."""
    floor: int
    likelihood: float
    """The largest log-likelihood; of ridge regression that at its coefficients."""
    aic: float
    """2 coefficients - 2 log-likelihood; a dispersion is not counted as one, and ridge's coefficients in part."""
    dispersion: float
    """The residuals' variance of linear regression, Pearson's of gamma, else 1."""
    absent: Mapping[str, str]
    """Client that did not answer -> why."""
    penalty: float = 0.0
    sites: tuple[Site, ...] = ()
    """Every client's own estimates, where they were asked for."""
    heterogeneity: tuple[Heterogeneity, ...] = ()
    """Of every coefficient that two sites or more have estimates of."""
    metric: str = ""
    """What models are judged by at the client left out."""
    left_out: tuple[LeftOut, ...] = ()
    """The fits without each client, where they were asked for."""
    references: Mapping[str, str] = field(default_factory=dict)
    """Covariate that is a column of texts -> the level that the others are compared with."""

    @classmethod
    def of(cls, run: Run, level: float = 0.95) -> Analysis:
        """From a run of the method, trained or loaded."""
        if "fit" not in run.state or not run.state["fit"]["rows"]:
            raise ParleyError("this run has no regression: no client answered, or it was for something else.")
        method = cast("Regression", run.algorithm)
        fit, model = run.state["fit"], method.model
        names, value = method.coefficients(run.task), float(fit["likelihood"])
        sites = tuple(_sites(run, names, model, level))
        return cls(
            run.task.info.name,
            model,
            _outcome(run),
            coefficient_rows(names, fit, model, level),
            tuple(map(tuple, fit["covariance"].tolist())),
            level,
            int(fit["rows"]),
            int(fit["missing"]),
            int(fit["events"]),
            len(run.federation),
            int(fit["clients"]),
            method.floor,
            value,
            2 * float(fit["freedom"]) - 2 * value,
            float(fit["dispersion"]),
            {failure.client: failure.reason for failure in run.failures()},
            method.penalty,
            sites,
            _heterogeneity(names, sites, model, level),
            METRICS.get(model, "share of the deviance") if method.leave_one_out else "",
            tuple(_left_out(run, names, model, level)),
            {name: levels[0] for name, levels in method.levels.items() if name in method.chosen(run.task)},
        )

    def __getitem__(self, name: str) -> Coefficient:
        by_name = {coefficient.name: coefficient for coefficient in self.coefficients}
        if name not in by_name:
            raise InputError(f"there is no coefficient '{name}': {nearest(name, by_name)}")
        return by_name[name]

    def table(self) -> list[dict[str, Any]]:
        """A row for every coefficient."""
        return [
            {name: value for name, value in asdict(coefficient).items() if self.model in RATIOS or "ratio" not in name}
            for coefficient in self.coefficients
        ]

    def frame(self) -> DataFrame:
        """The rows as a pandas DataFrame with the coefficients' names as index."""
        return data_frame(self.table(), "name")

    def csv(self) -> str:
        return csv_text(self.table())

    def json(self) -> str:
        return json.dumps(asdict(self), indent=1) + "\n"

    def notes(self) -> list[str]:
        """What has to be known to read the table, in sentences."""
        events = f" with {self.events:,} events" if self.model == "cox" else ""
        sentences = [
            f"{self.model.capitalize()} regression of {self.outcome}: {self.rows:,} rows{events} of {self.contributed} "
            f"of {self.clients} clients; log-likelihood {self.likelihood:.6g}, AIC {self.aic:.6g}."
        ]
        if self.penalty:
            sentences.append(
                f"Ridge with penalty {self.penalty:g}: errors, intervals and p values are NOT the usual ones. They are "
                "those of a normal prior about 0; estimates are biased towards 0, and intervals do not cover at their "
                "level."
            )
        if self.model == "cox" and self.events == self.rows:
            sentences.append(ALL_EVENTS)
        for name, level in self.references.items():
            sentences.append(f"Levels of '{name}' are compared with '{level}'.")
        if self.missing:
            rare = ", or texts that are none of the levels," if self.references else ""
            sentences.append(f"{self.missing:,} rows with missing values{rare} are left out.")
        silent = self.clients - self.contributed - len(self.absent)
        if silent:
            sentences.append(f"{silent} told nothing: they have fewer than {self.floor} complete rows (floor).")
        sentences += [
            f"Site '{fit.client}' has no estimates of its own: {fit.reason}." for fit in self.sites if fit.reason
        ]
        sentences += [f"There is no fit without '{fit.client}': {fit.reason}." for fit in self.left_out if fit.reason]
        return sentences + [f"Client '{client}' {reason}" for client, reason in self.absent.items()]

    def _repr_html_(self) -> str:
        rows = self.table()
        return as_html(f"{self.model} regression", [list(row.values()) for row in rows], list(rows[0]), self.notes())


@overload
def analyse(
    what: Study | Federation,
    model: Literal["kaplan-meier"],
    *,
    event: str = "",
    by: str = "",
    groups: Sequence[str | float] = (),
    times: Times | None = None,
    grid: Sequence[float] = (),
    floor: int = 10,
    level: float = 0.95,
    **settings: Any,
) -> SurvivalCurves: ...
@overload
def analyse(
    what: Study | Federation,
    model: Model = "gaussian",
    *,
    outcome: str | None = None,
    covariates: Sequence[str] = (),
    event: str = "",
    times: Times | None = None,
    grid: Sequence[float] = (),
    ties: Ties | None = None,
    penalty: float = 0.0,
    sites: bool = False,
    leave_one_out: bool = False,
    floor: int = 10,
    level: float = 0.95,
    **settings: Any,
) -> Analysis: ...
@overload
def analyse(what: Study | Federation, model: str, **settings: Any) -> Analysis | SurvivalCurves: ...
def analyse(
    what: Study | Federation,
    model: str = "gaussian",
    *,
    outcome: str | None = None,
    covariates: Sequence[str] = (),
    event: str = "",
    times: Times | None = None,
    grid: Sequence[float] = (),
    ties: Ties | None = None,
    by: str = "",
    groups: Sequence[str | float] = (),
    penalty: float = 0.0,
    sites: bool = False,
    leave_one_out: bool = False,
    floor: int = 10,
    level: float = 0.95,
    **settings: Any,
) -> Analysis | SurvivalCurves:
    """Fit a regression, or draw survival curves, over the clients of a study or a federation, as if all rows lay in one
    table.

    `model`: gaussian, logistic, poisson, gamma, cox or kaplan-meier; what is set is that of `GLM`, `Cox` and
    `KaplanMeier`. The outcome is the data's target, in a study of tables any column (`outcome`). `settings` are those
    of `train`, such as runtime and workers. Samples are those before any preprocessing, and of a study's channels
    `secure-sum` holds here too, with the same numbers.
    """
    check_level(level)
    method = method_for(
        model,
        floor,
        covariates=tuple(covariates),
        event=event,
        times=times,
        grid=tuple(grid),
        ties=ties,
        by=by,
        groups=tuple(groups),
        penalty=penalty,
        sites=sites,
        leave_one_out=leave_one_out,
    )
    return result(train(analysis_study(what, method, outcome), **settings), level)


def result(run: Run, level: float = 0.95) -> Analysis | SurvivalCurves:
    """What a run of one of these methods says."""
    return SurvivalCurves.of(run, level) if "curves" in run.state else Analysis.of(run, level)


def method_for(model: str, floor: int, **settings: Any) -> Regression | KaplanMeier:
    """The method of a model's name; settings that are None or empty are left to it."""
    chosen = {name: value for name, value in settings.items() if value not in _UNSET}
    if model in ("lasso", "elastic-net"):
        raise InputError(
            f"{model} is not offered: its coefficients have no standard errors or intervals; take a penalty (ridge)."
        )
    if model not in MODELS:
        raise InputError(f"there is no model '{model}': {nearest(model, MODELS)}")
    kind: Any = {"cox": Cox, "kaplan-meier": KaplanMeier}.get(model, GLM)
    taken = {name for name in settings if name in kind.__dataclass_fields__}
    other = next((name for name in chosen if name not in taken), None)
    if other:
        raise InputError(f"{other} is no setting of the model {model}.")
    if model == "kaplan-meier":
        _check_curves(chosen)
    return cast("Regression | KaplanMeier", kind(floor=floor, **chosen, **({"family": model} if kind is GLM else {})))


def _check_curves(chosen: Mapping[str, Any]) -> None:
    if chosen.get("times", "grid") == "grid" and "grid" not in chosen:
        raise InputError("survival curves need a grid that says where cells of time begin, or times = 'raw'.")
    if "groups" in chosen and "by" not in chosen:
        raise InputError("groups are values of the column 'by', which is not named.")


def analysis_study(what: Study | Federation, method: Regression | KaplanMeier, outcome: str | None = None) -> Study:
    """The question as a study, of all rows in float64."""
    method = method.with_levels(categories_of(what), lambda: statistics(what, floor=method.floor).levels, outcome)
    asked = question_study(what, method, "analysis")
    data = asked.data
    own_data = isinstance(data, DataSection) and data.name is None
    if outcome is not None and not own_data:
        raise InputError("an outcome can be chosen in a study of tables in a folder or file; here it is the target.")
    if isinstance(data, DataSection):
        data = replace(data, test_fraction=0.0)
        if own_data:
            kind = data.kind if method.model == "logistic" else "regression"
            data = replace(_explaining(data, outcome, method), dtype="float64", kind=kind)
        asked = replace(asked, data=data)
    if method.leave_one_out:
        asked = replace(asked, rounds=1 + len(asked.federation()))
    return asked


def _explaining(data: DataSection, outcome: str | None, method: Regression | KaplanMeier) -> DataSection:
    """The data with this target; the former one is read as numbers only where the method needs its numbers."""
    if outcome is None or outcome == data.target:
        return data
    texts = tuple(name for name in data.categories if name != outcome)
    if data.target is not None and not method.reads_numbers(data.target):
        texts = (*texts, data.target)
    return replace(data, target=outcome, categories=texts, dates=tuple(name for name in data.dates if name != outcome))


def check_level(level: float) -> None:
    """Refuse levels that no interval has."""
    if not 0 < level < 1:
        raise InputError(f"the level of intervals must lie between 0 and 1, not {level}.")


def coefficient_rows(names: Sequence[str], fit: Tree, model: str, level: float) -> tuple[Coefficient, ...]:
    """Wald's inference: t of linear regression with n - p degrees of freedom, else normal."""
    if int(fit["reason"]):
        return ()
    beta, errors = fit["beta"].numpy(), np.sqrt(np.diag(fit["covariance"].numpy()))
    against = stats.t(float(fit["rows"] - fit["freedom"])) if model == "gaussian" else None
    each = zip(names, beta, errors, strict=True)
    return tuple(wald(name, value, error, level, model in RATIOS, against) for name, value, error in each)


def _sites(run: Run, names: Sequence[str], model: str, level: float) -> list[Site]:
    site_fits = {client: run.state.get(f"site-{number}") for number, client in enumerate(run.federation.ids)}
    return [
        Site(
            client,
            int(fit["rows"]),
            int(fit["events"]),
            REASONS[int(fit["reason"])],
            coefficient_rows(names, fit, model, level),
        )
        for client, fit in site_fits.items()
        if fit
    ]


def _heterogeneity(names: Sequence[str], sites: Sequence[Site], model: str, level: float) -> tuple[Heterogeneity, ...]:
    fitted = [site.coefficients for site in sites if site.coefficients]
    if len(fitted) < 2:
        return ()
    columns = zip(names, zip(*fitted, strict=True), strict=True)
    return tuple(heterogeneity(name, rows, level, model in RATIOS) for name, rows in columns if name != INTERCEPT)


def _left_out(run: Run, names: Sequence[str], model: str, level: float) -> list[LeftOut]:
    fits = {client: run.state.get(f"without-{number}") for number, client in enumerate(run.federation.ids)}
    return [
        LeftOut(
            client,
            int(fit["told"]),
            float(fit["judged"]) if fit["told"] else None,
            REASONS[int(fit["reason"])],
            coefficient_rows(names, fit, model, level),
        )
        for client, fit in fits.items()
        if fit
    ]


def _outcome(run: Run) -> str:
    classes = run.task.info.classes
    return f"the odds of '{classes[1]}'" if classes and len(classes) == 2 else "the target"

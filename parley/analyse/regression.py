"""What all regressions share: which rows and columns, the agreed standardisation, sums of derivatives, inference.

    client   rows, and sums and sums of squares of every covariate, exactly (`columns`)
    server   means and deviations, with which everybody standardises, so that units do not matter
    client   at the server's coefficients: log-likelihood, score and information of its rows (`derivatives`)
    server   a Newton step; the two go on until nothing moves
    client   (with `sites`) the estimates of its own rows alone (`site`)
    client   (with `leave_one_out`, a round for each client) how the others' estimates do on its rows (`held_out`)

All but the last two are sums of whole numbers (`analyse.digits`), so secure sums give the same bits. A client with
fewer than `floor` complete rows answers zeros.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from parley.algorithms.exchange import Exchange, Question, Reply, ask
from parley.algorithms.protocol import Algorithm, Cohort, Contexts, Needs, Questions, Replies
from parley.algorithms.trees.binning import Floats
from parley.analyse.digits import decoded, digits_form, encoded
from parley.analyse.newton import INTERCEPT, MOST_POINTS, Fit, NoFit, Point, newton, solved
from parley.core.errors import InputError, WireError, nearest
from parley.core.form import Form
from parley.core.key import Key
from parley.core.message import Memory, Message, State
from parley.core.text import shown
from parley.core.tree import Tree
from parley.data import ClientData
from parley.statistics.exact_sums import DIGITS, carried, exact_sums
from parley.statistics.floors import floored
from parley.statistics.method import moments
from parley.training.stack import Data
from parley.training.task import Task

Asked = Generator[Question, Replies, Any]
Levels = Mapping[str, Mapping[str, int]]
"""Column of texts -> text -> how many rows have it."""


@dataclass(frozen=True)
class Rows:
    """A client's complete rows: [n, p] covariates and [n] outcomes, in float64."""

    x: Floats
    y: Floats
    event: Floats
    """[n] 1 where the outcome is the time of an event; of regressions without times, ones."""


@dataclass(frozen=True)
class Scale:
    """What everybody takes off and divides by: of the covariates, and last of the outcome."""

    center: Floats
    scale: Floats

    def __call__(self, rows: Rows) -> Rows:
        moved = (rows.x - self.center[:-1]) / self.scale[:-1]
        return Rows(moved, (rows.y - self.center[-1]) / self.scale[-1], rows.event)


@dataclass(frozen=True)
class Regression(Algorithm):
    """A regression whose likelihood is a sum over clients."""

    intercept: ClassVar[bool] = True
    extra: ClassVar[int] = 0
    """How many sums its dispersion and likelihood need besides; with any, the expected information is told, too."""

    covariates: tuple[str, ...] = ()
    """Columns to regress on; by default all."""
    floor: int = 10
    """Fewest complete rows of a client behind anything it sends; with 1 it discloses single rows."""
    penalty: float = 0.0
    """Ridge penalty: half of it times the sum of squared coefficients of standardised columns is subtracted from
    the log-likelihood (gaussian and gamma: that with dispersion 1)."""
    levels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Levels of text covariates, the first being the reference; rows with other texts count as incomplete. `parley
    analyse` computes them."""
    sites: bool = False
    """Ask every client for its own estimates, too; rules out secure sums."""
    leave_one_out: bool = False
    """Fit again without each client, a round for each after the first, and try the fit there; rules out secure sums."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "covariates", tuple(self.covariates))
        object.__setattr__(self, "levels", {name: tuple(levels) for name, levels in self.levels.items()})
        if (short := next((name for name, levels in self.levels.items() if len(set(levels)) < 2), None)) is not None:
            raise InputError(f"column '{shown(short)}' has no two levels to compare; leave it out.")
        if not 1 <= self.floor <= 2**31:
            raise InputError(f"floor must lie between 1 and {2**31}, not {self.floor}.")
        if not 0 <= self.penalty < np.inf:
            raise InputError(f"penalty must be a number, 0 or more, not {self.penalty}.")
        if self.penalty and self.sites:
            raise InputError("sites are compared by estimates without a penalty; leave out penalty or sites.")

    @property
    def needs(self) -> Needs:
        return Needs(network=False, missing=True, texts=True, cpu=True)

    def exchanges(self) -> tuple[Exchange, ...]:
        asked = {"site": self.sites, "held_out": self.leave_one_out}
        return tuple(each for each in super().exchanges() if asked.get(each.name, True))

    # --- what a regression says ---

    @property
    def model(self) -> str:
        """What `parley analyse` calls it."""
        raise NotImplementedError

    def check(self, task: Task) -> None:
        """Refuse data that are not for it."""

    def outcomes(self, task: Task, data: ClientData) -> tuple[Floats, Floats, int]:
        """Outcomes, whether each is an event, and how many can be none."""
        raise NotImplementedError

    def refusal(self, wrong: int) -> str:
        """Why outcomes cannot be used."""
        raise NotImplementedError

    def check_events(self, events: int, rows: int) -> None:
        """Refuse outcomes that are all alike."""

    def check_rows(self, rows: Rows) -> None:
        """Refuse a client's rows of which it may send nothing, however many they are."""

    def reserved(self) -> tuple[str, ...]:
        """Columns that are no covariates."""
        return ()

    def reads_numbers(self, column: str) -> bool:
        """Whether the numbers of a column that is not the outcome are needed."""
        return column in (self.covariates or (column,))

    def with_levels(
        self, named: Mapping[str, tuple[str, ...]], ask: Callable[[], Levels], outcome: str | None = None
    ) -> Self:
        """Itself with the levels of each covariate that is a column of texts: those that the study declares (`named`,
        empty where it does not), or those that enough samples of some client have (`ask`)."""
        known = {
            name: levels
            for name, levels in named.items()
            if name in (self.covariates or named) and name not in (*self.levels, *self.reserved(), outcome)
        }
        counts = {} if all(known.values()) else ask()
        for name in (name for name, levels in known.items() if not levels):
            levels = sorted(level for level, count in counts[name].items() if count)
            reference = max(levels, key=counts[name].__getitem__, default="")
            known[name] = (reference, *(level for level in levels if level != reference)) if levels else ()
        return replace(self, levels=self.levels | known) if known else self

    def likelihood(self, rows: Rows, beta: Floats) -> Point:
        """Of a client's standardised rows."""
        raise NotImplementedError

    def judged(self, rows: Rows, beta: Floats) -> float:
        """How well coefficients of others predict a client's rows."""
        raise NotImplementedError

    def outcome_scale(self, mean: float, deviation: float) -> tuple[float, float]:
        """What everybody takes off outcomes and divides them by."""
        return 0.0, 1.0

    def start(self, mean: float) -> float:
        """The intercept to begin with, of outcomes of this mean."""
        return 0.0

    def moved(self, beta: Floats, center: float, scale: float) -> tuple[Floats, float]:
        """Coefficients in the outcome's own unit, and the factor of their errors."""
        return beta, 1.0

    def dispersion(self, point: Point, freedom: float) -> float:
        """By which the inverse information is multiplied."""
        return 1.0

    def final(self, point: Point, spread: float, scale: float) -> tuple[float, float]:
        """The log-likelihood and the dispersion in the outcome's own unit."""
        return point.value, spread

    # --- the server ---

    def names(self, task: Task) -> tuple[str, ...]:
        """The covariates' names, those of texts with a level: pain[typical]."""
        names: list[str] = []
        for name in self.chosen(task):
            texts = name in task.info.categories
            names += [f"{name}[{level}]" for level in self.levels[name][1:]] if texts else [name]
        return tuple(names)

    def chosen(self, task: Task) -> tuple[str, ...]:
        """The columns to regress on."""
        known = column_names(task)
        for name in (*self.covariates, *self.reserved()):
            if name not in known:
                raise InputError(f"there is no column '{shown(name)}': {nearest(name, known)}")
        chosen = self.covariates or tuple(name for name in known if name not in self.reserved())
        for name in chosen:
            if name in task.info.categories and name not in self.levels:
                raise InputError(f"column '{shown(name)}' holds texts; say which (levels), or leave it out.")
        return chosen

    def coefficients(self, task: Task) -> tuple[str, ...]:
        """Their names, the intercept first."""
        return (INTERCEPT,) * self.intercept + self.names(task)

    def init(self, task: Task, key: Key) -> State:
        if len(task.info.shape) != 1 or task.info.kind == "text":
            raise InputError(f"'{task.info.name}' is not a table, which a regression needs.")
        self.check(task)
        self.names(task)
        return State.of(fit=_outcome(np.zeros(len(self.coefficients(task)))))

    def round(self, task: Task, state: State, cohort: Cohort, number: int, key: Key) -> Questions:
        others = ("", *cohort.everyone) if self.leave_one_out else ()
        left_out = others[number - 1] if 1 < number <= len(others) else None
        ids = [client for client in cohort.ids if client != left_out]
        try:
            scale, counts, start = yield from self._standardised(task, ids)
            grid = yield from self.prepared(task, ids)
            fit = yield from self._largest(task, ids, scale, grid, start)
        except NoFit as error:
            if left_out is None:
                raise
            return state.replace(**{f"without-{number - 2}": self._no_estimates(task, error.reason) | _NOT_JUDGED})
        estimates = self._estimates(fit, scale) | counts
        if left_out is not None:
            replies = yield ask(self.held_out, {left_out: self._message(scale, fit.beta)})
            judged = replies[left_out]["held_out"] if left_out in replies else _NOT_JUDGED
            return state.replace(**{f"without-{number - 2}": estimates | judged})
        state = state.replace(fit=estimates)
        if self.sites:
            replies = yield ask(self.site, dict.fromkeys(ids, self._message(scale, fit.beta)))
            for client, reply in replies.items():
                state = state.replace(**{f"site-{cohort.everyone.index(client)}": reply["site"]})
        return state, {"rows": float(fit.point.rows)}

    def _standardised(self, task: Task, ids: Sequence[str]) -> Generator[Question, Replies, tuple[Scale, Tree, float]]:
        """What all standardise with, how many rows there are, and an intercept to begin with."""
        replies = yield ask(self.columns, dict.fromkeys(ids, Message()))
        sums = replies.sum("sums")
        rows, names = int(sums["rows"]), self.names(task)
        if not rows:
            raise NoFit(1, f"no client has {self.floor} complete rows, the fewest that may be reported (floor).")
        if int(sums["wrong"]):
            raise InputError(self.refusal(int(sums["wrong"])))
        self.check_events(int(sums["events"]), rows)
        needed = len(self.coefficients(task))
        if rows <= needed:
            raise NoFit(1, f"{rows} complete rows are too few for {needed} coefficients.")
        many = torch.full((len(names) + 1,), rows)
        first, second = (torch.from_numpy(carried(sums[name].numpy())) for name in ("first", "second"))
        center, scale = moments({"count": many, "first": first, "second": second})
        flat = [name for name, spread in zip(names, scale, strict=False) if not spread > 0]
        if flat:
            raise NoFit(2, f"column '{shown(flat[0])}' has the same value in all rows; leave it out.")
        start = self.start(float(center[-1]))
        center[-1], scale[-1] = self.outcome_scale(float(center[-1]), float(scale[-1]))
        counts = {name: sums[name].double() for name in ("rows", "missing", "clients", "events")}
        return Scale(center, scale), counts, start

    def prepared(self, task: Task, ids: Sequence[str]) -> Generator[Question, Replies, Floats]:
        """A grid of times, where one is needed."""
        yield from ()
        return np.zeros(0)

    def _largest(
        self, task: Task, ids: Sequence[str], scale: Scale, grid: Floats, start: float
    ) -> Generator[Question, Replies, Fit]:
        search = newton(self.coefficients(task), start)
        beta = next(search)
        while True:
            point = yield from self.evaluated(task, ids, scale, beta, grid)
            try:
                beta = search.send(self._penalised(point, beta, 1))
            except StopIteration as end:
                fit: Fit = end.value
                return fit

    def evaluated(self, task: Task, ids: Sequence[str], scale: Scale, beta: Floats, grid: Floats) -> Asked:
        """The likelihood of all clients' rows."""
        replies = yield ask(self.derivatives, dict.fromkeys(ids, self._message(scale, beta)))
        sums = decoded(replies.sum("sums"))
        if sums["withheld"] > 0:
            raise withheld(self.coefficients(task), beta, int(sums["withheld"]))
        return Point(
            float(sums["rows"]),
            float(sums["value"]),
            sums["score"],
            sums["information"],
            sums.get("expected"),
            sums.get("extra"),
        )

    def _penalised(self, point: Point, beta: Floats, sign: int) -> Point:
        """The likelihood less the penalty, or with the penalty given back."""
        each = sign * self.penalty * np.concatenate([[0.0] * self.intercept, np.ones(len(beta) - self.intercept)])
        return replace(
            point,
            value=point.value - float(each @ beta**2) / 2,
            score=point.score - each * beta,
            information=point.information + np.diag(each),
            expected=None if point.expected is None else point.expected + np.diag(each),
        )

    def _message(self, scale: Scale, beta: Floats) -> Message:
        made = {"center": scale.center, "scale": scale.scale, "beta": beta}
        return Message.of(at={name: torch.from_numpy(np.asarray(value)) for name, value in made.items()})

    def _estimates(self, fit: Fit, scale: Scale) -> Tree:
        """Coefficients and their covariance in the columns' own units."""
        back = np.diag(np.concatenate([[1.0] * self.intercept, 1 / scale.scale[:-1]]))
        if self.intercept:
            back[0, 1:] = -scale.center[:-1] / scale.scale[:-1]
        center, unit = float(scale.center[-1]), float(scale.scale[-1])
        beta, factor = self.moved(back @ fit.beta, center, unit)
        plain = self._penalised(fit.point, fit.beta, -1)
        freedom = float(np.trace(fit.covariance @ plain.fisher)) if self.penalty else float(len(beta))
        spread = self.dispersion(plain, freedom)
        covariance = spread * factor**2 * back @ fit.covariance @ back.T
        return _outcome(beta, covariance, *self.final(plain, spread, unit), freedom=freedom)

    def _no_estimates(self, task: Task, reason: int) -> Tree:
        """Zeros, for numbers that travel have to be some, and why they are none."""
        size = len(self.coefficients(task))
        return _outcome(np.zeros(size), np.zeros((size, size)), reason=reason)

    # --- the client ---

    def rows(self, task: Task, data: Data) -> tuple[Rows, int, int]:
        """Its complete rows, how many are not, and how many have impossible outcomes."""
        assert isinstance(data, ClientData)
        whole = self.complete(task, data)
        kept = ClientData(data.x[whole], data.y[whole])
        y, event, wrong = self.outcomes(task, kept)
        return Rows(self.design(task, kept.x.double().numpy()), y, event), int((~whole).sum()), wrong

    def complete(self, task: Task, data: ClientData) -> Tensor:
        """Which rows have all that it needs."""
        x, (y, event, _) = self.design(task, data.x.double().numpy()), self.outcomes(task, data)
        return torch.from_numpy(np.isfinite(x).all(axis=1) & np.isfinite(y) & np.isfinite(event))

    def design(self, task: Task, x: Floats) -> Floats:
        """The covariates of raw rows; NaN where a text is missing or none of the levels."""
        known, parts = column_names(task), [x[:, :0]]
        for name in self.chosen(task):
            cells = x[:, known.index(name), None]
            if name in task.info.categories:
                texts = task.info.levels[task.info.categories.index(name)]
                codes = {level: float(code) for code, level in enumerate(self.levels[name])}
                places_of = np.array([*(codes.get(text, np.nan) for text in texts), np.nan])
                cells = places_of[np.where(np.isnan(cells), len(texts), cells).astype(np.int64)]
                cells = np.where(np.isnan(cells), np.nan, cells == np.arange(1, len(codes)))
            parts.append(cells)
        return np.concatenate(parts, axis=1)

    def rare(self, task: Task, data: ClientData) -> str:
        """Columns that show few rows: a column of zeros but for one row has that row's covariates beside it in the
        information matrix, and in the score its outcome. So has the difference of two columns of zeros and ones."""
        rows, _, _ = self.rows(task, data)
        if len(rows.y) < self.floor:
            return ""
        columns = [*zip(self.names(task), rows.x.T, strict=True), ("the outcome", rows.y), ("the event", rows.event)]
        few = [name for name, column in columns if self._few(np.unique(column, return_counts=True)[1].max(), rows)]
        binary = [(name, column == column.max()) for name, column in columns if 1 < len(np.unique(column)) < 3]
        for (name, first), (other, two) in itertools.combinations(binary, 2):
            same = int((first == two).sum())
            if self._few(same, rows) or self._few(len(rows.y) - same, rows):
                few.append(f"{name} with {other}")
        return f"fewer than {self.floor} rows stand out in {', '.join(few)}" if few else ""

    def _few(self, most: int, rows: Rows) -> bool:
        return bool(0 < len(rows.y) - most < self.floor)

    def _form(self, task: Task) -> Form:
        size = len(self.coefficients(task))
        shapes: dict[str, tuple[int, ...]] = {"rows": (), "value": (), "score": (size,)}
        shapes |= {"information": (size, size), "withheld": ()}
        shapes |= {"expected": (size, size), "extra": (self.extra,)} if self.extra else {}
        return Form.of(sums=digits_form(**shapes))

    def _columns_form(self, task: Task) -> Form:
        many = len(self.names(task)) + 1
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(_COUNTS, ())
        shapes |= {"first": (many, DIGITS[1]), "second": (many, DIGITS[2])}
        return Form.of(sums={name: (torch.int64, shape) for name, shape in shapes.items()})

    @floored(
        form=lambda self, task, message: self._columns_form(task),
        accepts=lambda self, task, message: Form(),
        reads="sum",
        rows=lambda self: self.complete,
    )
    def columns(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Rows, missing ones, impossible outcomes, events, and each covariate's sums."""
        form = self._columns_form(task).sizes
        sums = {name.removeprefix("sums/"): torch.zeros(shape, dtype=kind) for name, (kind, shape) in form.items()}
        rows, missing, wrong = self.rows(task, data)
        if len(rows.y) < self.floor:
            return Reply(Message.of(sums=sums))
        if not wrong:
            self.check_rows(rows)
        values = np.concatenate([rows.x, rows.y[:, None]], axis=1).T
        counted = (1, len(rows.y), missing, wrong, int(rows.event.sum()))
        sums |= {name: torch.tensor(count) for name, count in zip(_COUNTS, counted, strict=True)}
        sums |= {"first": torch.from_numpy(exact_sums(values, 1)), "second": torch.from_numpy(exact_sums(values, 2))}
        return Reply(Message.of(sums=sums))

    @floored(
        form=lambda self, task, message: self._form(task),
        accepts=lambda self, task, message: accepted(self, task, message),
        reads="sum",
        times=MOST_POINTS,
        rare=lambda self: self.rare,
    )
    def derivatives(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """Its rows' log-likelihood, score and information at the coefficients."""
        rows, beta = self._usable_rows(task, message, data)
        few = self.too_few(self.row_weights(rows, beta))
        point = self.likelihood(rows, beta) if len(rows.y) and not few else nothing(len(beta), self.extra)
        sums = {name: value for name, value in vars(point).items() if value is not None}
        return Reply(Message.of(sums=encoded(sums | {"withheld": float(few)})))

    def row_weights(self, rows: Rows, beta: Floats) -> Floats:
        """How much each row counts in the information at these coefficients."""
        return np.ones(len(rows.y))

    def too_few(self, weights: Floats) -> bool:
        """The rows that count are fewer, (sum w)^2 / sum w^2, than a quarter of the floor: coefficients of a server's
        choice would show single ones. All clients' own estimates are far from that."""
        size = np.abs(weights).max(initial=0.0)
        if self.floor < 2 or not len(weights) or not size > 0:
            return False
        shares = weights / size
        return not bool((shares >= 0).all() and shares.sum() ** 2 / (shares**2).sum() >= max(2.0, self.floor / 4))

    @floored(
        form=lambda self, task, message: Form.of(site=Form.like(_outcome(np.zeros(len(self.coefficients(task)))))),
        accepts=lambda self, task, message: accepted(self, task, message),
    )
    def site(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """The estimates of its own rows, or why there are none."""
        names = self.coefficients(task)
        rows, _ = self._usable_rows(task, message, data)
        estimates = self._no_estimates(task, 1)
        if len(rows.y) > len(names):
            try:
                self.check_events(int(rows.event.sum()), len(rows.y))
                fit = solved(newton(names, self.start(float(rows.y.mean()))), lambda beta: self.likelihood(rows, beta))
                estimates = self._estimates(fit, _scale(message))
            except NoFit as error:
                estimates = self._no_estimates(task, error.reason)
            except (np.linalg.LinAlgError, ValueError):  # a scale on which nothing can be computed
                estimates = self._no_estimates(task, 2)
        counts = {"rows": float(len(rows.y)), "events": float(rows.event.sum())}
        counted = {name: torch.tensor(value, dtype=torch.float64) for name, value in counts.items()}
        return Reply(Message.of(site=estimates | counted))

    @floored(
        form=lambda self, task, message: Form.of(held_out={"judged": (torch.float64, ()), "told": (torch.float64, ())}),
        accepts=lambda self, task, message: accepted(self, task, message),
    )
    def held_out(self, task: Task, message: Message, memory: Memory, data: Data, context: Contexts) -> Reply:
        """How well the others' coefficients predict its rows, and of how many rows that is said."""
        rows, beta = self._usable_rows(task, message, data)
        value = self.judged(rows, beta) if len(rows.y) else np.nan
        count = float(len(rows.y)) if np.isfinite(value) else 0.0
        parts = {"judged": float(np.nan_to_num(value)), "told": count}
        return Reply(Message.of(held_out={n: torch.tensor(v, dtype=torch.float64) for n, v in parts.items()}))

    def _usable_rows(self, task: Task, message: Message, data: Data) -> tuple[Rows, Floats]:
        """Its standardised rows, none where they are too few, and the coefficients."""
        rows, _, _ = self.rows(task, data)
        kept = len(rows.y) if len(rows.y) >= self.floor else 0
        rows = Rows(rows.x[:kept], rows.y[:kept], rows.event[:kept])
        return _scale(message)(rows), message["at"]["beta"].numpy()


_COUNTS = ("clients", "rows", "missing", "wrong", "events")
_ONE = torch.ones(1)
_NOT_JUDGED = {name: torch.zeros((), dtype=torch.float64) for name in ("judged", "told")}
_MOST = 1e100


def accepted(method: Regression, task: Task, message: Message) -> Form:
    """The form of coefficients and a scale that can be computed with."""
    many, beta = len(method.names(task)) + 1, len(method.coefficients(task))
    at = message.get("at")
    if not all(bool((value.abs() < _MOST).all()) for value in at.values()) or bool((at.get("scale", _ONE) <= 0).any()):
        raise WireError("the coefficients or the scale are no numbers to compute with.")
    return Form.of(at={n: (torch.float64, (k,)) for n, k in (("center", many), ("scale", many), ("beta", beta))})


def withheld(names: Sequence[str], beta: Floats, clients: int) -> NoFit:
    """Why a search ends at coefficients at which clients tell nothing."""
    spread = int(np.argmax(np.abs(beta) * [name != INTERCEPT for name in names]))
    return NoFit(
        3,
        f"the coefficient of '{shown(names[spread])}' grows without end, or to where so few rows of "
        f"{clients} client{'s' * (clients > 1)} count that nothing is told of them; leave it out or merge rare values.",
    )


def nothing(size: int, extra: int = 0) -> Point:
    """The likelihood of no rows."""
    point = Point(0.0, 0.0, np.zeros(size), np.zeros((size, size)))
    return replace(point, expected=np.zeros((size, size)), extra=np.zeros(extra)) if extra else point


def column_names(task: Task) -> tuple[str, ...]:
    """The columns' names; x0, x1, ... where they have none."""
    return task.info.columns or tuple(f"x{n}" for n in range(task.info.shape[0]))


def _scale(message: Message) -> Scale:
    at = message["at"]
    return Scale(at["center"].numpy(), at["scale"].numpy())


def _outcome(
    beta: Floats,
    covariance: Floats | None = None,
    value: float = 0.0,
    spread: float = 1.0,
    reason: int = 0,
    freedom: float = 0.0,
) -> Tree:
    size = len(beta)
    parts = {
        "beta": beta,
        "covariance": np.full((size, size), np.nan) if covariance is None else covariance,
        "likelihood": value,
        "dispersion": spread,
        "freedom": freedom,
        "reason": float(reason),
        "rows": 0.0,
        "missing": 0.0,
        "clients": 0.0,
        "events": 0.0,
    }
    return {name: torch.from_numpy(np.asarray(part, np.float64).copy()) for name, part in parts.items()}

r"""Combined answers: what a lead, or its server, gets from several questions that are each a plan of its own.

The questions go through the messages of a federation: a server, and sites that are copies of this one, so that nothing
of it is hidden in a sum. What the site refuses is refused here.

**Several regressions.** A linear regression of z on columns X tells X'z = X'X b from its coefficients b. Somebody who
knows v, such as the ages, knows all columns that are functions of v. With the columns A of all answers the best guess
of z is its projection

.. math:: \hat z = A (A'A)^{+} A'z,

which is z itself in each row whose leverage in A is 1, see ``leverage``. The questions are poles 1/(v - c) next to a
value of v, powers and logarithms of v, and pairs of plans with and without a column that has gaps, whose rows differ.

**Made-up coefficients.** The server of a regression sends steep coefficients, at which all rows but those next to one
value have no weight, so that the second derivatives are this row. In secure sums it sends them to one site only, and
to the others what the method asks for.

**Half-spaces.** The server has models scored that call every row with v above a threshold ill. From one threshold to
the next the number of right answers changes by one if the row between them is a test row: by its label.

References:
    Pasquini, Francati, Ateniese: Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.comparisons.regression.formula import design_of, parse_formula
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.fitted_regression import read_fit
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.plan_files import plan_from_text
from resolvent.federation.protocol.wire import Message, decode, encode, identity_of_message
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.read_rows import read_frame
from resolvent.federation.site.regression_run import RegressionRun
from resolvent.federation.site.site import Site
from resolvent.red_team.recovery import InputScale, recovered_rows

if TYPE_CHECKING:
    import pandas as pd

_POLES, _PLANS = 6, 4  # in a plan; plans with poles
_NEAR = 1e-8  # distance of a pole from its value, in standard deviations
_STEEP = 1e4  # slope of the made-up coefficients, for a column of the standard deviation 1
_FEWEST_VALUES = 3  # a column with fewer is guessed
_THRESHOLDS, _ROWS_OF_A_SCORE, _EXACT = 30, 20, 0.01
_HALF_SPACES = "scores of half-spaces that the server makes up"
Change = Callable[[str, bytes], bytes]


class Questions(NamedTuple):
    """What came of the questions of an attack.

    Attributes:
        what: the questions.
        asked: number of plans, or of rounds of one, that were asked.
        answered: number of those that the site has answered; in secure sums with a sum that can be read.
        rows: number of rows that come back, or of which a value is determined.
    """

    what: str
    asked: int
    answered: int
    rows: int


class Insiders:
    """A lead and its server, and sites that are copies of one.

    Args:
        folder: the folder of the site's runs, which is written to; the copies have others.
    """

    def __init__(self, folder: Path, file: SiteFile, name: str) -> None:
        self.folder, self.name, self._file = folder, name, replace(file, approval=None)
        self.sites = (name, *(f"copy-{k}" for k in range(1, max(3, file.limits.min_sites))))
        self._identities, self._numbers = local_identities(self.sites), itertools.count(1)
        self.answers: list[Message] = []

    def serve(self, text: str, change: Change = lambda name, message: message) -> Path | None:
        """Run a plan; ``change`` is what the server does to its messages. Returns the folder of a complete run."""
        job = FederationJob(f"attack-{next(self._numbers)}", text, self.sites, signature={})
        plan, folder, self.answers = plan_from_text(text, job.run), self.folder / "insiders", []
        sites = {name: Site(name, self.folder if name == self.name else folder / name, self._file,
                            verify=lambda content, signature: "the lead",
                            identity=self._identities[name]) for name in self.sites}
        try:
            transport = InProcess({name: partial(self._handle, sites[name], change) for name in self.sites})
            out = folder / "out" / job.run
            watch = Watch(lambda event: None)
            outcome = serve_federation(job, plan, transport, folder / "server" / job.run, out, watch)
        finally:
            for site in sites.values():
                site.close()
        return out if outcome["status"] == "complete" else None

    def _handle(self, site: Site, change: Change, message: bytes | memoryview) -> bytes:
        sent = bytes(message)
        answer = decode(site.handle(change(site.name, sent)))
        if site.name == self.name:
            self.answers.append(answer)
        # As if it had answered the message that the others got.
        return encode(replace(answer, facts={**answer.facts, "answers": identity_of_message(sent)}))


def attack_combined(insiders: Insiders, frame: "pd.DataFrame", plan: Plan, has_time: Callable[[], bool]) -> Questions:
    """Ask several regressions about the columns of numbers, and combine the answers.

    Args:
        frame: the site's table, see ``table_of``.
        plan: the questions go through secure sums if this plan does.
        has_time: whether a further question may be asked; one is asked in any case.
    """
    values, names = _numbers(frame)
    questions = answered = 0
    known = set[int]()
    for target in names[1:]:
        spans, products = list[NDArray[np.float64]](), list[NDArray[np.float64]]()
        for right in _questions(values, names[0], target):
            if questions and not has_time():
                break
            questions += 1
            formula, privacy = f"`{target}` ~ {right}", {} if plan.privacy is None else {
                "privacy": {"secure_sums": True}}
            folder = insiders.serve(write_yaml({"regression": {"formula": formula, "family": "gaussian"}, **privacy}))
            if folder is None:
                continue
            answered += 1
            basis, fitted = _answer(values, target, formula, folder)
            spans.append(basis)
            products.append(basis.T @ fitted)
        if spans:
            guess = np.linalg.lstsq(np.hstack(spans).T, np.concatenate(products), 1e-9)[0]
            has_value = values[target].notna().to_numpy()
            scale = InputScale(np.ones(1, bool), np.array([values[target].std()]))
            rows = recovered_rows(guess[has_value, None], values[[target]][has_value].to_numpy(), scale)
            known |= {*np.flatnonzero(has_value)[rows].tolist()}
    return Questions("several regressions, to somebody who knows one column of all rows", questions, answered,
                     len(known))


def table_of(file: SiteFile) -> "pd.DataFrame":
    """The site's table with the names of the federation."""
    return read_frame(file).rename(columns={local: common for common, local in (file.columns or {}).items()})


def _numbers(frame: "pd.DataFrame") -> "tuple[pd.DataFrame, list[str]]":
    """The columns of numbers, and the names of those with several values, the one with the most first."""
    values = frame.select_dtypes("number").astype(float)
    counts = values.nunique().sort_values(ascending=False, kind="stable")
    return values, [name for name in counts.index if counts[name] >= _FEWEST_VALUES]


def _questions(values: "pd.DataFrame", known: str, target: str) -> Iterator[str]:
    """The right sides of formulas, whose columns are functions of the column that the insider knows."""
    v, numbers = f"`{known}`", values[known].dropna()
    of_values = numbers.value_counts()
    alone = of_values.index[of_values == 1].to_numpy() + _NEAR * numbers.std()
    for name in values.columns:
        if name not in (known, target) and 0 < values[name].isna().sum() < len(values) / 2:
            yield v
            yield f"{v} + `{name}`"
    for first in range(0, min(len(alone), _PLANS * _POLES), _POLES):
        yield " + ".join(f"I(1/({v} - {pole!r}))" if pole >= 0 else f"I(1/({v} + {-pole!r}))"
                         for pole in map(float, alone[first:first + _POLES]))
    shift = float(numbers.std() - numbers.min())
    yield f"{v} + I({v}**2) + I({v}**3) + log({v} {'+' if shift >= 0 else '-'} {abs(shift)!r})"


def _answer(values: "pd.DataFrame", target: str, formula: str,
            folder: Path) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[n, p] an orthonormal basis of the columns of a regression, and [n] its fitted values; 0 in rows left out."""
    parsed, fit = parse_formula(formula), read_fit(folder).result
    used = values[[target, *parsed.variables]].notna().all(axis=1).to_numpy()
    design = design_of(parsed, values[used])
    slopes = dict(zip(fit.names, fit.estimates, strict=True))
    x = np.zeros((len(values), len(design.names)))
    x[used] = design.x
    basis = np.zeros_like(x)
    basis[used] = np.linalg.qr(x[used] / np.abs(x).max(axis=0))[0]
    return basis, x @ np.array([slopes[name] for name in design.names])


def attack_coefficients(insiders: Insiders, run: RegressionRun) -> Questions:
    """Answer the rounds of a regression with steep coefficients at the values of its first column that varies.

    Args:
        run: the regression at the site, after ``prepare``.
    """
    x, is_summed, sent = run.rows.x, run.plan.privacy is not None, 0
    deviation = x.std(axis=0)
    varying, constant = int(np.argmax(deviation > 0)), np.flatnonzero(deviation == 0)[:1]
    poles = np.unique(x[:, varying])

    def change(name: str, message: bytes) -> bytes:
        nonlocal sent
        content = decode(message)
        if content.kind != "work" or (is_summed and name != insiders.name):
            return message
        slope, middle = _STEEP / deviation[varying], poles[sent % len(poles)]
        sent += name == insiders.name
        arrays = dict(content.arrays)
        for key, array in arrays.items():
            if key.startswith("payload") and array.ndim == 1 and array.size >= x.shape[1]:
                steep = np.zeros_like(array)
                steep[varying], steep[constant] = slope, -slope * middle
                arrays[key] = steep
        return encode(replace(content, arrays=arrays))

    insiders.serve(run.plan.text, change)
    what, replies = "coefficients that the server makes up", [m.arrays for m in insiders.answers if m.kind == "reply"]
    if is_summed:  # the first sum is read when the second round begins
        return Questions(what, sent, max(sent - 1, 0), 0)
    of_rows = [matrix[constant[0]] / matrix[constant[0], constant[0]] for reply in replies
               for key, matrix in reply.items() if key.endswith("hessian") and constant.size
               and matrix.shape == (x.shape[1],) * 2 and matrix[constant[0], constant[0]]]
    is_number = np.array([len(np.unique(column)) >= _FEWEST_VALUES for column in x.T])
    guesses = np.concatenate([np.zeros((0, x.shape[1])), *(guess[None] for guess in of_rows)])
    rows = recovered_rows(guesses, x, InputScale(is_number, np.where(deviation > 0, deviation, 1.0)))
    return Questions(what, sent, len(replies), len(rows))


def attack_scores(insiders: Insiders, frame: "pd.DataFrame") -> Questions:
    """Have half-spaces in the column with the most numbers scored, outside secure sums.

    Many at first and, if the site refuses these, few. Labels that are wrong count -1.

    Args:
        frame: the site's table, see ``table_of``.
    """
    values, names = _numbers(frame)
    labels = [str(name) for name in frame if frame[name].nunique() == 2 and frame[name].notna().all()]
    if not names or not labels:
        return Questions(_HALF_SPACES, 0, 0, 0)
    table = frame.assign(v=values[names[0]]).dropna(subset="v").sort_values("v")
    alone = table[~table["v"].duplicated(keep=False)]
    for count in (_THRESHOLDS, len(frame) // _ROWS_OF_A_SCORE):
        found = _score_half_spaces(insiders, names[0], labels[0], alone.iloc[:count])
        if found.answered:
            break
    return found


def _score_half_spaces(insiders: Insiders, name: str, label: str, alone: "pd.DataFrame") -> Questions:
    """Score a half-space below each row and one at the last.

    Args:
        name: the column of numbers.
        alone: the rows, each the only one with its number ``v``, in ascending order.
    """
    numbers = alone["v"].to_numpy()
    thresholds = [*(numbers - np.diff(numbers, prepend=numbers[0] - 1) / 2), numbers[-1]]
    scale = list[float]()

    def change(site: str, message: bytes) -> bytes:
        content = decode(message)
        if content.kind == "prepare":
            column = content.facts["content"]["encoding"]["numbers"][0]
            scale[:] = column["mean"], column["deviation"]
        if content.kind != "evaluate":
            return message
        bias = -_STEEP * (thresholds[content.round - 1] - scale[0]) / scale[1]
        return encode(replace(content, arrays={
            key: np.full_like(array, _STEEP if "weight" in key else bias) if array.dtype.kind == "f" else array
            for key, array in content.arrays.items()}))

    insiders.serve(write_yaml({
        "data": {"label": label, "features": [name]}, "model": "logistic", "algorithms": ["fedavg"],
        "solver": {"name": "GD", "learning_rate": 0.1, "steps": 1}, "rounds": len(thresholds), "evaluate_every": 1}),
        change)
    rows, scores = 0, {answer.round: answer.facts["personal"]["accuracy"].get("test", np.nan)
                       for answer in insiders.answers if answer.kind == "scores" and answer.facts.get("personal")}
    tested = sum(facts["split_sizes"][facts["splits"].index("test")] for facts in (
        answer.facts for answer in insiders.answers if answer.kind == "ready"))
    for t, value in enumerate(alone[label], 1):
        step = (scores.get(t + 1, np.nan) - scores.get(t, np.nan)) * tested
        if abs(abs(step) - 1) < _EXACT:
            rows += 1 if (step > 0) == (value == min(alone[label])) else -1
    return Questions(_HALF_SPACES, len(thresholds), len(scores), max(rows, 0))

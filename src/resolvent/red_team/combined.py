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

References:
    Pasquini, Francati, Ateniese: Eluding Secure Aggregation in Federated Learning via Model Inconsistency, CCS 2022.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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
from resolvent.federation.protocol.wire import decode, encode, identity_of_message
from resolvent.federation.secure.local import local_identities
from resolvent.federation.server.serve import serve_federation
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
Change = Callable[[str, bytes], bytes]


class Combined(NamedTuple):
    """What several answers give together.

    Attributes:
        questions: number of plans that were asked.
        answered: number of those that the site has answered.
        rows: number of rows of which a value is determined.
    """

    questions: int = 0
    answered: int = 0
    rows: int = 0


class MadeUp(NamedTuple):
    """What a server gets that sends coefficients of its own.

    Attributes:
        rounds: number of rounds in which it had an answer of the site, in secure sums a sum that can be read.
        rows: number of rows that come back from the answers.
    """

    rounds: int = 0
    rows: int = 0


class Insiders:
    """A lead and its server, and sites that are copies of one.

    Args:
        folder: the folder of the site's runs, which is written to; the copies have others.
    """

    def __init__(self, folder: Path, file: SiteFile, name: str) -> None:
        self.folder, self.name, self._file = folder, name, replace(file, approval=None)
        self.sites = (name, *(f"copy-{k}" for k in range(1, max(3, file.limits.min_sites))))
        self._identities, self._numbers = local_identities(self.sites), itertools.count(1)
        self.replies: list[Mapping[str, NDArray[Any]]] = []

    def serve(self, text: str, change: Change = lambda name, message: message) -> Path | None:
        """Run a plan; ``change`` is what the server does to its messages. Returns the folder of a complete run."""
        job = FederationJob(f"attack-{next(self._numbers)}", text, self.sites, signature={})
        plan, folder, self.replies = plan_from_text(text, job.run), self.folder / "insiders", []
        sites = {name: Site(name, self.folder if name == self.name else folder / name, self._file,
                            verify=lambda content, signature: "the lead",
                            identity=None if plan.privacy is None else self._identities[name]) for name in self.sites}
        try:
            transport = InProcess({name: partial(self._handle, sites[name], change) for name in self.sites})
            out = folder / "out" / job.run
            outcome = serve_federation(job, plan, transport, folder / "server" / job.run, out, lambda event: None)
        finally:
            for site in sites.values():
                site.close()
        return out if outcome["status"] == "complete" else None

    def _handle(self, site: Site, change: Change, message: bytes | memoryview) -> bytes:
        sent = bytes(message)
        answer = decode(site.handle(change(site.name, sent)))
        if answer.kind == "reply" and site.name == self.name:
            self.replies.append(answer.arrays)
        # As if it had answered the message that the others got.
        return encode(replace(answer, facts={**answer.facts, "answers": identity_of_message(sent)}))


def attack_combined(insiders: Insiders, file: SiteFile, plan: Plan, has_time: Callable[[], bool]) -> Combined:
    """Ask several regressions about the columns of numbers, and combine the answers.

    Args:
        plan: the questions go through secure sums if this plan does.
        has_time: whether a further question may be asked; one is asked in any case.
    """
    frame = read_frame(file).rename(columns={local: common for common, local in (file.columns or {}).items()})
    values = frame.select_dtypes("number").astype(float)
    counts = values.nunique().sort_values(ascending=False, kind="stable")
    names = [name for name in counts.index if counts[name] >= _FEWEST_VALUES]
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
    return Combined(questions, answered, len(known))


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


def attack_coefficients(insiders: Insiders, run: RegressionRun) -> MadeUp:
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
    if is_summed:  # the first sum is read when the second round begins
        return MadeUp(max(sent - 1, 0))
    of_rows = [matrix[constant[0]] / matrix[constant[0], constant[0]] for reply in insiders.replies
               for key, matrix in reply.items() if key.endswith("hessian") and constant.size
               and matrix.shape == (x.shape[1],) * 2 and matrix[constant[0], constant[0]]]
    is_number = np.array([len(np.unique(column)) >= _FEWEST_VALUES for column in x.T])
    guesses = np.concatenate([np.zeros((0, x.shape[1])), *(guess[None] for guess in of_rows)])
    rows = recovered_rows(guesses, x, InputScale(is_number, np.where(deviation > 0, deviation, 1.0)))
    return MadeUp(len(insiders.replies), len(rows))

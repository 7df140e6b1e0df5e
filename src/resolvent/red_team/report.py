"""The report of the red team: how much comes back from a plan at a site, and what to change."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from resolvent.red_team.answers import Differencing
from resolvent.red_team.combined import Questions
from resolvent.red_team.membership import Membership, Rate
from resolvent.red_team.recovery import TOLERANCE


@dataclass(frozen=True)
class MethodAttack:
    """What comes back from the updates and models of one method.

    Attributes:
        attacked_rounds: number of rounds whose replies were attacked in closed form; 0 if the method sends none.
        closed_form: number of training rows that come back in closed form.
        searched: number of training rows that come back from the first reply by a search.
        residual: smallest distance of the update of the rows that were searched from the real one.
        is_exact: whether the search has repeated the local work step by step.
        membership: the membership inference; None if it was not possible.
        rows: number of rows that come back, by whichever attack.
        note: why an attack was not made; empty otherwise.
    """

    method: str
    rounds: int
    attacked_rounds: int = 0
    closed_form: int = 0
    searched: int = 0
    searches: int = 0
    residual: float | None = None
    is_exact: bool = True
    membership: Membership | None = None
    rows: int = 0
    note: str = ""


@dataclass(frozen=True)
class AttackReport:
    """How much comes back from a plan at a site. It has no value of the table.

    Attributes:
        refused: why the site would refuse the plan, so that nothing leaves and nothing was attacked; empty otherwise.
        differencing: what follows from all answers about the table.
        methods: what follows from the replies of each method of an experiment.
        questions: what follows from questions beside the plan, and from models that the server makes up.
    """

    site: str
    refused: str = ""
    training_rows: int = 0
    differencing: Differencing | None = None
    methods: tuple[MethodAttack, ...] = ()
    questions: tuple[Questions, ...] = ()

    @property
    def rows(self) -> int:
        """The largest number of rows that an attack brings back."""
        attacks = (self.differencing, *self.questions, *self.methods)
        return max((attack.rows for attack in attacks if attack is not None), default=0)

    def plain(self) -> dict[str, Any]:
        """Plain values."""
        content = asdict(self)
        content["differencing"] = None if self.differencing is None else self.differencing._asdict()
        content["questions"] = [questions._asdict() for questions in self.questions]
        for method, plain in zip(self.methods, content["methods"], strict=True):
            result = method.membership
            plain["membership"] = None if result is None else {
                "true_positive": result.true_positive._asdict(), "false_positive": result.false_positive._asdict(),
                "p_value": result.p_value, "shadows": result.shadows, "more_than_chance": result.is_more_than_chance}
        return {**content, "rows": self.rows, "tolerance": TOLERANCE}

    def lines(self) -> Iterator[str]:
        """The report in sentences, with what to change."""
        yield f"attacks on what the plan would release at {self.site}, on its own table"
        if self.refused:
            yield f"The site refuses the plan, so that nothing leaves, and nothing was attacked: {self.refused}"
            return
        if self.differencing is not None:
            yield from _differencing_lines(self.differencing)
        for method in self.methods:
            yield from _method_lines(method, self.training_rows)
        for what, asked, answered, rows in self.questions:
            yield f"{what}: {answered} of {asked} were answered; together they give {rows} rows"
        if any(questions.rows for questions in self.questions):
            yield ("  Change: leave max_leverage, max_leverage_in_sums, max_parameters_per_row, max_scores and "
                   "min_cell as they are.")
        yield (f"A row comes back if every number of a guess is within {TOLERANCE} standard deviations of it, every "
               "level is right, no other row is nearer, and guesses from the marginal distributions are ten times as "
               "far.")
        yield f"ROWS THAT COME BACK: {self.rows}" if self.rows else "No row comes back."


def _differencing_lines(result: Differencing) -> Iterator[str]:
    yield (f"Differencing over {result.answers} answers about the table: {result.rows} rows with a determined value, "
           f"{result.sums} sums and {result.counts} counts over fewer rows than min_cell")
    if result.rows or result.sums:
        yield "  Change: raise min_cell, and keep runs/table.versions of the kit: without it the site answers anew."
    if result.counts:
        yield ("  Change: such a number tells how many rows have a value, and not which: exclude the column, join its "
               "rare values, or raise min_cell.")


def _method_lines(method: MethodAttack, training_rows: int) -> Iterator[str]:
    title = f"{method.method}:"
    if not method.attacked_rounds:
        yield f"{title} {method.note}"
        return
    yield (f"{title} {method.closed_form} of {training_rows} training rows come back in closed form, from the replies "
           f"of {method.attacked_rounds} of {method.rounds} rounds")
    if method.closed_form:
        yield ("  Change: an update to which one row contributes, divided by that of the bias, is the row. Ask for a "
               "larger batch_size, at least limits.min_batch, and for more local steps, or set limits.clip and noise.")
    kind = "the local work, repeated step by step" if method.is_exact else "the direction of the gradient"
    distance = "no search has converged" if method.residual is None else f"smallest distance {method.residual:.1e}"
    yield (f"{title} {method.searched} rows come back from the first reply by {method.searches} searches that match "
           f"{kind}; {distance}")
    if method.searched:
        yield ("  Change: fewer parameters for each row (limits.max_parameters_per_row), a larger batch_size, more "
               "local steps, or limits.clip and noise.")
    if method.membership is None:
        yield f"{title} no membership inference: there is no released model, or there are no validation and test rows"
    else:
        yield from _membership_lines(title, method.membership)
    if method.note:
        yield f"{title} {method.note}"


def _membership_lines(title: str, result: Membership) -> Iterator[str]:
    kind = f"with {result.shadows} shadow models" if result.shadows else "by a threshold of the loss"
    more = "MORE THAN CHANCE" if result.is_more_than_chance else "not more than chance"
    yield (f"{title} membership inference {kind}: flagged are {_rate(result.true_positive)} of the training rows and "
           f"{_rate(result.false_positive)} of the others: {more} (p = {result.p_value:.2g})")
    if result.is_more_than_chance:
        yield "  Change: fewer rounds or parameters, a stronger l2, or noise: differential privacy bounds this attack."


def _rate(rate: Rate) -> str:
    return f"{rate.flagged / rate.rows:.0%} [{rate.low:.0%}, {rate.high:.0%}]"

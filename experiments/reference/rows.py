"""The rows of the table: one cell each, their JSON schema, and files of them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pydantic

from experiments.reference.methods import TRIALS
from experiments.reference.problems import PROBLEMS
from resolvent.errors import InputError
from resolvent.files import write_text
from resolvent.metrics import higher_is_better

FOLDER = Path(__file__).parent
RESULTS, SCHEMA = FOLDER / "results.json", FOLDER / "schema.json"
SEEDS = 5
Layer = Literal["honest", "attacked"]
Key = tuple[str, str, str]


class Row(pydantic.BaseModel):
    """A cell of the table: what one method did on one problem.

    Numbers that are not finite, because a model diverged, are null. A list over seeds, parties or evaluations is empty
    in a cell that was not measured.

    Attributes:
        problem: name of the problem.
        layer: ``honest``, or ``attacked``: a fifth of the parties is malicious.
        method: name of the method.
        outcome: ``measured``; ``diverged``: no trial has a finite validation score; or ``refused``: the method does
            not apply.
        reason: why a method was refused, or diverged.
        score: the metric of all numbers below.
        personal: whether the method is meant to give personal models.
        setting: the learning rate and the own parameter, chosen on validation samples without malicious parties.
        trials: number of settings that were tried.
        rounds: rounds of a run.
        means: for each seed, the mean test score of the honest parties.
        worst: for each seed, the mean of the worst tenth of them.
        parties: for each honest party, the mean over the seeds of its test score.
        evaluated: the rounds after which the models were evaluated.
        curve: the mean over parties and seeds at these rounds.
        bytes: bytes that all parties receive and send in a round, mean over rounds and seeds.
        seconds: CPU seconds of a run without compilation, mean over the seeds.
        cost: CPU seconds of the cell: trials, seeds, evaluations, and the compilations that no other cell shares.
        jax: version of JAX.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    problem: str
    layer: Layer
    method: str
    outcome: Literal["measured", "diverged", "refused"]
    reason: str = ""
    score: str
    personal: bool
    setting: dict[str, float] = {}
    trials: int
    rounds: int
    means: list[float | None] = []
    worst: list[float | None] = []
    parties: list[float | None] = []
    evaluated: list[int] = []
    curve: list[float | None] = []
    bytes: float | None = None
    seconds: float | None = None
    cost: float | None = None
    jax: str

    @pydantic.model_validator(mode="after")
    def _check(self) -> "Row":
        if (self.outcome == "measured") != bool(self.means):
            raise ValueError("means: a measured cell has one for each seed, another cell has none")
        if len(self.worst) not in (0, len(self.means)):
            raise ValueError(f"worst: {len(self.worst)} seeds, and means has {len(self.means)}")
        if len(self.evaluated) != len(self.curve):
            raise ValueError("evaluated and curve have one number for each evaluation")
        return self

    @property
    def key(self) -> Key:
        """What identifies the cell."""
        return self.problem, self.layer, self.method

    @property
    def sign(self) -> float:
        """1 if a larger score is better, otherwise -1."""
        return 1.0 if self.score == "digits" or higher_is_better(self.score) else -1.0

    @property
    def is_finite(self) -> bool:
        """Whether the cell was measured and no seed diverged."""
        return bool(self.means) and None not in self.means

    @property
    def is_complete(self) -> bool:
        """Whether the row may be in the committed table: all seeds, all rounds, all trials, a problem of the table."""
        rounds = {problem.name: problem.rounds for problem in PROBLEMS}.get(self.problem)
        return (self.rounds, self.trials) == (rounds, TRIALS) and len(self.means) in (0, SEEDS)


def schema() -> str:
    """The JSON schema of a row, as ``schema.json`` has it."""
    return json.dumps(Row.model_json_schema(), indent=1) + "\n"


def read_rows(path: Path) -> dict[Key, Row]:
    """The rows of a file, by cell; none if there is no file.

    Raises:
        InputError: the file is not JSON, or a row is not as the schema says.
    """
    if not path.exists():
        return {}
    try:
        rows = [Row.model_validate(row) for row in json.loads(path.read_text("utf-8"))["rows"]]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InputError(f'{path}: this is not a JSON file {{"rows": [...]}} of cells: {error}') from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; {SCHEMA.name} has the schema of "
                         "a row") from None
    return {row.key: row for row in rows}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write a file of rows, one on each line, so that changes are easy to compare."""
    lines = [json.dumps(row.model_dump(exclude_defaults=True)) for row in sorted(rows, key=lambda row: row.key)]
    write_text(path, '{"rows": [\n' + ",\n".join(lines) + "\n]}\n")


def merge(path: Path, into: Path = RESULTS) -> int:
    """Add the rows of another machine to a file, and return how many are new.

    Raises:
        InputError: a row is not as the schema says, is of another budget, or of a cell that has other numbers already.
    """
    known, new = read_rows(into), read_rows(path)
    if not new:
        raise InputError(f"--merge {path}: the file has no rows")
    for key, row in new.items():
        cell = ", ".join(key)
        if not row.is_complete:
            raise InputError(f"--merge {path}: {cell}: {len(row.means)} seeds, {row.rounds} rounds and {row.trials} "
                             f"trials are not those of the table, {SEEDS} seeds and {TRIALS} trials with the rounds of "
                             "the problem: run it without --quick")
        if key in known and known[key] != row:
            raise InputError(f"--merge {path}: {cell}: {into.name} has other numbers for this cell: remove its row "
                             "there first if it shall be replaced")
    write_rows(into, (known | new).values())
    return len(new.keys() - known.keys())

"""The settings of a comparison that a program made, as text."""

import equinox as eqx

from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.data.federated import FederatedData

_WIDTH = 100


def settings_text(experiment: Experiment) -> str:
    """The data, the model, the methods and the numbers of an experiment, a line or a block for each."""
    data, lines = experiment.data, list[str]()
    if isinstance(data, FederatedData):
        sizes = ", ".join(f"{int(data.sizes(split).sum())} {split} rows" for split in data.splits)
        lines.append(f"data: {data.name}, {len(data.parties)} sites, {sizes}")
    parts = {"model": experiment.model, "problem": experiment.problem, "participation": experiment.participation,
             "clock": experiment.clock, "privacy": experiment.privacy, "decision": experiment.decision}
    numbers = {"rounds": experiment.rounds, "seeds": f"{experiment.seeds} from {experiment.seed}",
               "folds": experiment.folds, "decide_by": experiment.decide_by}
    lines += [f"{name}: {_text(part)}" for name, part in parts.items() if part is not None]
    lines += [f"{name}: {value}" for name, value in numbers.items() if value is not None]
    return "\n".join([*lines, *(f"{label}: {_text(a)}" for label, a in experiment.algorithms.items())])


def _text(part: object) -> str:
    return str(eqx.tree_pformat(part, width=_WIDTH))

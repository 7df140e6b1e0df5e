"""What would leave a site in the rounds of a method, by name and size."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from resolvent.algorithms.description import Description
from resolvent.federation.protocol.message_shapes import tree_of_one
from resolvent.federation.protocol.wire import size_of
from resolvent.problem.problem import Problem
from resolvent.simulator.engine.evaluate import evaluate_models
from resolvent.simulator.record.metrics_table import HELD_OUT


class Departure(NamedTuple):
    """An array or numbers that leave the site in a run.

    Attributes:
        message: the kind of message, with its phase.
        bytes: size; 8 for each number in the header.
    """

    message: str
    name: str
    bytes: int


def list_departures(description: Description, problem: Problem, scored: Sequence[str],
                    metrics: Sequence[str]) -> list[Departure]:
    """Everything that would leave the site, without values."""
    counted = dict.fromkeys(("training", *("training" if split == "train" else split for split in problem.splits)))
    departures = [Departure("ready", f"number of {name} samples", 8) for name in counted]
    for phase, reply in enumerate(description.replies):
        title = f"reply of phase {phase + 1}, every round"
        departures += [Departure(title, name, size) for name, size in size_of(reply).items()]
    if not scored:
        return departures
    scores = jax.eval_shape(evaluate_models, problem, tree_of_one(description.model), jnp.zeros(1, int))
    held_out = tuple(split for split in HELD_OUT if split in scored)
    measured = (([*scores], scored), ([*metrics], held_out))
    models = ("personal",) if description.shared is None else ("personal", "shared")
    return departures + [
        Departure("scores, every evaluation", f"{', '.join(names)} on {', '.join(of_splits)} of the {model} model",
                  8 * len(names) * len(of_splits))
        for model in models for names, of_splits in measured if names and of_splits]

"""What the types of an experiment's settings cannot say: checks before the data are loaded, and after."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import jax
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.participation.rules import Participation, Stragglers
from resolvent.comparisons.experiment.binding import Bound, parameters
from resolvent.comparisons.experiment.file_types import key_text
from resolvent.comparisons.experiment.registry import registry_of
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, quote
from resolvent.math import tree
from resolvent.problem.models.model import Model
from resolvent.problem.problem import Problem, SolvedProblem
from resolvent.problem.problem_data import ProblemData, ProblemModel

_MIN_VALUES = {"rounds": 1, "evaluate_every": 1, "seed": 0, "seeds": 1, "folds": 1}


def folder_name(label: str) -> str:
    """A label as the name of a folder: ``FedAvg+`` becomes ``FedAvg-plus``."""
    return re.sub(r"[^\w.-]+", "-", label.replace("+", "-plus"))[:60].strip("-.") or "method"


def check_same_data(folder: Path, digest: str, data: FederatedData, advice: str) -> None:
    """Refuse data that are not those of a run, or are divided in another way.

    Args:
        digest: of the samples of the run.
        advice: what to do, for the end of the error.
    """
    from resolvent.simulator.checkpoint.identity import fingerprint_of  # the checks of a file do not need it

    if fingerprint_of(data) != digest:
        raise InputError(f"the data {quote(data.name)} have changed since the run in {folder}, or an earlier version "
                         f"of resolvent ran it: {advice}")


def check_settings(bound: Bound) -> None:
    """Check settings before any data are loaded."""
    help_texts = parameters(bound.function)
    for key in ("data", "model"):
        if "problem" in bound.parts and key in bound.parts:
            raise InputError(f"{key}: a problem has its own data and model: remove {key}, or the problem")
        if "problem" not in bound.parts and key not in bound.parts:
            raise InputError(f"{key}: missing; {help_texts[key].help}")
    for key, smallest in _MIN_VALUES.items():
        value = bound.values[key]
        if value is not None and value < smallest:
            raise InputError(f"{key}: {quote(value)} must be at least {smallest}")
    check_labels(bound.settings()["algorithms"])


def has_default_folds(bound: Bound) -> bool:
    """Whether the data decide the number of folds.

    With a start they do not, because its model has seen rows of all folds; nor with a search, which would be done anew
    in each fold.
    """
    return bound.values["folds"] is None and bound.values["start"] is None and "search" not in bound.parts


def check_labels(algorithms: Iterable[str]) -> None:
    """Check that labels can be read, and that each has a folder of its own."""
    label_of_folder: dict[str, str] = {}
    for label in algorithms:
        if not label.isprintable() or not label.strip():
            raise InputError(f"algorithms: {quote(label)} cannot be a label: use visible letters")
        other = label_of_folder.setdefault(folder_name(label).casefold(), label)
        if other != label:
            raise InputError(f"algorithms.{key_text(label)}: the models of {quote(label)} and of {quote(other)} would "
                             f"be written to the same folder, {folder_name(label)}: rename one of them")


def check_model(bound: Bound, data: FederatedData) -> NDArray[np.integer]:
    """Check that the model fits the data, and that the data can rank the methods.

    Returns:
        [N] number of held-out samples of each party.
    """
    models = registry_of(Model)

    def fits(function: Callable[..., Any]) -> bool:
        known = parameters(function)
        if ("vocabulary" in known) != bool(data.vocabulary):
            return False
        if "task" in known:
            return data.task in get_args(known["task"].type)
        return ("classes" in known) == (data.task == "classification")

    model = bound.part("model")
    while "model" in model.parts:  # one that is adapted
        model = model.part("model")
    if not model.kinds and not fits(model.function):  # one of the user's own is checked by its shapes
        fitting = [name for name, function in models.functions.items() if fits(function)]
        raise InputError(f"model: {model.name} does not fit the data {data.name!r}, which are {_kind_of(data)}: use "
                         f"{' or '.join(fitting)}")
    check_test_samples(data)
    return data.sizes("validation")


def model_of_problem(part: Bound, data: ProblemData) -> ProblemModel:
    """The model of data from which a problem follows. It is of a kind of its own, of which the library has none."""
    model = part.build() if part.kinds else None
    if not (isinstance(model, ProblemModel) and isinstance(model, data.models)):
        raise InputError(f"model: {part.name} does not fit the data {data.name!r}, which are {data.kind}: use "
                         f"module:function of your own that returns a {data.models.__name__}")
    return model


def check_test_samples(data: FederatedData) -> None:
    """Check that at least one party has test samples."""
    if not data.sizes("test").any():
        raise InputError("data: no party has test samples, and the methods are compared on test samples: "
                         "set a larger share with test")


def _kind_of(data: FederatedData) -> str:
    return f"{'tokens, ' if data.vocabulary else ''}for {data.task}"


def check_shared_models(problem: Problem | None, algorithms: Mapping[str, Algorithm],
                        participation: Participation) -> None:
    """Check that on a solved problem every method has a shared model."""
    if not isinstance(problem, SolvedProblem):
        return
    w0, shares = problem.init(jax.random.key(0)), participation.shares(problem.sizes)
    for label, algorithm in algorithms.items():
        if algorithm.server_model(algorithm.init(w0, shares)) is None:
            raise InputError(f"algorithms.{label}: it has no shared model, and the methods are compared by the "
                             "optimality gap of the shared model: remove it")


def straggler_policy_note(algorithms: Mapping[str, Algorithm], participation: Participation) -> str:
    """A sentence about methods whose own policy for stragglers makes them differ; empty if all methods are alike."""
    stragglers = tree.parts(participation, Stragglers)
    if not stragglers:
        return ""
    keeping, dropping = (", ".join(label for label, algorithm in algorithms.items()
                                   if (algorithm.straggler_policy or stragglers[0].work) == policy)
                         for policy in ("keep", "drop"))
    return (f"The methods differ in more than their updates: the partial work of stragglers counts with {keeping}, but "
            f"not with {dropping}. Leave out the setting stragglers of the methods, and set work in the participation"
            if keeping and dropping else "")

"""The methods of the reference, a line each, and methods of others from files of their own."""

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any, NamedTuple

import resolvent as rv
from experiments.reference.problems import Problem
from resolvent.errors import InputError

TRIALS = 6  # of every method on every problem
RATES = {1: (0.025, 0.05, 0.1, 0.2, 0.4, 0.8), 2: (0.05, 0.2, 0.8)}  # by the number of values of the own parameter

A, C, P = rv.aggregators, rv.combinators, rv.penalties
Make = Callable[..., rv.Algorithm]


class Method(NamedTuple):
    """A row of the table.

    Attributes:
        name: its name.
        make: function of the solver and the own parameter to the algorithm; or of the solver, the problem and the own
            parameter, if ``reads_problem``.
        tried: the own parameter and its two values, if it has one; all others have their defaults.
        reads_problem: whether ``make`` gets the problem.
        goal: what the method gives: a ``shared`` model or ``personal`` ones.
        needs_features: whether the model must have a hidden layer.
        power: 1 if the own parameter is a step, -1 if it is the weight of a squared distance, in the problem's unit.
    """

    name: str
    make: Make
    tried: tuple[str, tuple[float, ...]] = ("", (0.0,))
    reads_problem: bool = False
    goal: str = "shared"
    needs_features: bool = False
    power: int = 0

    def space(self) -> dict[str, list[float]]:
        """The values of the learning rate and of the own parameter, ``TRIALS`` combinations.

        Raises:
            InputError: the number of combinations is another one.
        """
        name, values = self.tried
        rates = RATES.get(len(values), ())
        space = {"learning_rate": [*rates]} | ({name: [*values]} if name else {})
        if math.prod(map(len, space.values())) != TRIALS:
            raise InputError(f"{self.name}: {name} has {len(values)} values: every method has {TRIALS} trials, three "
                             "learning rates times two values of one parameter, or six learning rates")
        return space

    def algorithm(self, problem: Problem, learning_rate: float, **own: float) -> rv.Algorithm:
        """The algorithm on a problem."""
        solver, own = problem.solver(learning_rate), {k: v * problem.unit**self.power for k, v in own.items()}
        return self.make(solver, problem, **own) if self.reads_problem else self.make(solver, **own)


def _chosen(inner: Make) -> Make:
    """Each party chooses between training alone, the inner algorithm's model, and mixtures."""
    return lambda solver: rv.model_interpolation(solver, inner(solver))


METHODS = [
    Method("alone", rv.local, goal="personal"),
    Method("FedAvg", rv.fedavg),
    Method("FedProx", rv.fedprox, ("mu", (0.01, 0.3)), power=-1),
    Method("Scaffold", rv.scaffold),
    Method("FedNova", rv.fednova),
    Method("FedDyn", rv.feddyn, ("alpha", (0.03, 0.3)), power=-1),
    Method("FedPi", rv.fedpi, ("eta", (0.3, 3.0)), power=1),
    Method("FedDR", rv.feddr, ("eta", (0.3, 3.0)), power=1),
    Method("FedExP", rv.fedexp),
    Method("Scaffnew", rv.scaffnew, ("p", (0.1, 0.3))),
    Method("FedAvgM", rv.fedavgm, ("server_rate", (0.3, 1.0))),
    Method("FedACG", rv.fedacg, ("lam", (0.7, 0.85))),
    Method("FedAdam", rv.fedadam, ("server_rate", (0.01, 0.1))),
    Method("q-FedAvg", rv.qfedavg, ("q", (0.1, 1.0))),
    Method("TERM", rv.term, ("t", (0.1, 1.0))),
    Method("AFL", rv.afl, ("gamma", (0.01, 0.1))),
    Method("FedSAM", rv.fedsam, ("radius", (0.02, 0.1))),
    Method("FedAU", rv.fedau),
    Method("MIFA", rv.mifa),
    Method("MOON", rv.moon, ("mu", (0.1, 1.0)), needs_features=True),
    Method("FedNTD", rv.fedntd, ("beta", (0.3, 1.0)), needs_features=True),
    Method("FedDecorr", rv.feddecorr, ("beta", (0.01, 0.1)), needs_features=True),
    Method("FedLC", rv.fedlc, ("tau", (0.5, 1.0)), needs_features=True),
    Method("geometric median", rv.rfa),
    Method("coordinate median", rv.coordinate_median),
    Method("trimmed mean", lambda s, share: rv.robust(s, A.TrimmedMean(share=share)), ("share", (0.2, 0.3))),
    Method("momentum of mixing", lambda s: C.Momentum(
        rv.robust(s, A.NearestNeighbourMixing(A.TrimmedMean(share=0.2), share=0.2)), decay=0.9)),
    Method("FedGeoMed+", rv.fedgeomed_plus, ("sigma", (0.1, 1.0)), goal="personal"),
    Method("FedAvg+", rv.fedavg_plus, ("sigma", (0.1, 1.0)), goal="personal"),
    Method("protected Fed+", rv.protected_fedplus, goal="personal"),
    Method("robust interpolation", rv.robust_interpolation, goal="personal"),
    Method("interpolation of FedAvg", _chosen(rv.fedavg), goal="personal"),
    Method("fine-tuned FedAvg", lambda s: C.FineTuned(rv.fedavg(s), s), goal="personal"),
    Method("head-tuned FedAvg", lambda s, problem: C.FineTuned(rv.fedavg(s), s, problem.head),
           reads_problem=True, goal="personal"),
    Method("FedPer", lambda s, problem: C.PersonalLayers(rv.fedavg(s), problem.head), reads_problem=True,
           goal="personal"),
    Method("FedBABU", lambda s, problem: rv.fedbabu(s, layers=problem.head), reads_problem=True, goal="personal",
           needs_features=True),
    Method("FedProto", lambda s, problem, lam: rv.fedproto(
        s, lam=lam, classes=problem.classes, features=problem.features), ("lam", (0.1, 1.0)), reads_problem=True,
           goal="personal", needs_features=True),
    Method("Ditto", rv.ditto, ("lam", (0.1, 1.0)), goal="personal"),
    Method("APFL", rv.apfl, ("alpha", (0.3, 0.7)), goal="personal"),
    Method("pFedMe", rv.pfedme, ("lam", (1.0, 15.0)), goal="personal"),
    Method("L2GD", rv.l2gd, ("lam", (0.02, 0.2)), goal="personal"),
    Method("FedMix", rv.fedmix, ("alpha", (0.3, 0.7)), goal="personal"),
    Method("Per-FedAvg", rv.perfedavg, ("alpha", (0.01, 0.1)), goal="personal"),
    Method("IFCA", rv.ifca, goal="personal"),
    Method("FedCAC", rv.fedcac, ("tau", (0.3, 0.5)), goal="personal"),
]


def own_method(path: Path) -> Method:
    """The method of a file: its function or class of a solver.

    The file may also have ``TRIED = {"parameter": (value, value)}``, ``GOAL = "personal"``, and ``POWER``, see
    ``Method``.

    Raises:
        InputError: the file defines no method, or several.
    """
    if not path.is_file():
        raise InputError(f"--method {path}: there is no such file")
    names = run_path(str(path), run_name=path.stem)
    makes = {name: value for name, value in names.items()
             if callable(value) and getattr(value, "__module__", None) == path.stem and not name.startswith("_")
             and next(iter(inspect.signature(value).parameters), None) == "solver"}
    if len(makes) != 1:
        raise InputError(f"--method {path}: one function or class whose first parameter is solver is the method, and "
                         f"the file has {', '.join(makes) or 'none'}: begin the names of the others with _")
    tried: dict[str, Any] = names.get("TRIED", {})
    if len(tried) > 1:
        raise InputError(f"--method {path}: TRIED has {', '.join(tried)}: one parameter with two values can be tuned")
    name, make = next(iter(makes.items()))
    known = [method.name for method in METHODS]
    if name in known:
        raise InputError(f"--method {path}: the table has a method {name} already: give it another name")
    return Method(name, make, next(((key, tuple(values)) for key, values in tried.items()), ("", (0.0,))),
                  goal=names.get("GOAL", "shared"), power=names.get("POWER", 0))


# Methods of files that joined the table.
METHODS.append(own_method(Path(__file__).with_name("sdane.py")))

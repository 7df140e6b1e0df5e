"""Runs that teach little although nothing is wrong with their arguments: each in one sentence, with the remedy."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.extend.core import Literal

from resolvent.algorithms.aggregators.aggregator import aggregators_of
from resolvent.algorithms.keys import key_shape
from resolvent.algorithms.method import local_solvers
from resolvent.simulator.plan import Plan
from xla_cpu_rewrites.programs import inner_jaxprs

if TYPE_CHECKING:
    import pandas as pd

_ROWS = 1000  # of the inputs, whose largest number is read
_MOVES = ("reshape", "convert_element_type", "transpose", "squeeze", "broadcast_in_dim", "copy", "pad")
_PRODUCTS = ("dot_general", "conv_general_dilated")


def doubts_of_plan(plan: Plan) -> Iterator[str]:
    """What can be said before the first round."""
    for aggregator in aggregators_of(plan.algorithm):
        if (note := aggregator.cohort_note(plan.cohort_size)) is not None:
            yield f"{plan.name}: {note}"
    if any(solver.restarts_schedule(plan.description.model) for solver in local_solvers(plan.algorithm)):
        yield (f"{plan.name}: the schedule inside the optax optimizer begins anew in every round, because the state of "
               "the optimizer does: use OptaxSolver(schedule=), which counts rounds, such as "
               "rv.schedules.Cosine(rounds=100), or keep=True, with which each party counts its own steps")
    if plan.task.model is not None and _has_unscaled_bytes(plan):
        yield (f"{plan.name}: the inputs are 8-bit integers, such as pixels from 0 to 255, and the model multiplies "
               "them by its weights as they are, so that training diverges or stands still: divide them by 255 first; "
               "of packed data, write_packed(scale=1/255)")


def doubt_of_replies(metrics: "pd.DataFrame", method: str) -> str | None:
    """A sentence if no reply of a run counted, or none of a round that has replies; None otherwise."""
    rows = metrics[metrics["method"] == method]
    counted = rows.loc[rows["metric"] == "replies"].groupby("round")["value"].sum()
    refused = rows.loc[rows["metric"] == "refused"].groupby("round")["value"].sum()
    idle = refused.index.intersection(counted.index[counted == 0])
    if len(idle):
        return (f"{method}: no reply was finite in {len(idle)} of {len(counted)} rounds, from round {idle[0]} on, and "
                "the shared model stayed as it was: use a smaller learning rate, SGD(clip=1.0) or smaller "
                "inputs")
    if len(counted) and not counted.any():
        return (f"{method}: no reply arrived in any of {len(counted)} rounds, so that nothing was learned: let more "
                "parties take part (participation=), or keep the work of stragglers")
    return None


def _has_unscaled_bytes(plan: Plan) -> bool:
    """Whether inputs are bytes greater than 1 that enter a product with the model's weights as they are."""
    data, model = plan.task.data, plan.task.model
    assert data is not None
    assert model is not None
    if getattr(data.x, "dtype", None) != np.uint8 or data.vocabulary or np.max(data.x[:_ROWS], initial=0) <= 1:
        return False
    inputs = jax.ShapeDtypeStruct((2, *data.input_shape), np.dtype(np.float32))  # type: ignore[no-untyped-call]
    program = jax.make_jaxpr(lambda params, x: model.apply(params, x))(jax.eval_shape(model.init, key_shape()), inputs)
    return _enters_product(program.jaxpr, {program.jaxpr.invars[-1]})


def _enters_product(program: Any, moved: set[Any]) -> bool:
    """Whether variables, only moved and converted, are factors of a product in a program."""
    for equation in program.eqns:
        is_input = [not isinstance(v, Literal) and v in moved for v in equation.invars]
        if not any(is_input):
            continue
        name = equation.primitive.name
        if name in _PRODUCTS:
            return True
        if name in _MOVES:
            moved.update(equation.outvars)
        for inner in inner_jaxprs(equation):
            if _enters_product(inner, {v for v, of_input in zip(inner.invars, is_input, strict=False) if of_input}):
                return True
    return False

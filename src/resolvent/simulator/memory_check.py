"""Refuse a run that the machine's memory cannot hold, before anything is allocated."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from resolvent.algorithms import keys
from resolvent.algorithms.round import initial_server, reply_shapes
from resolvent.errors import InputError
from resolvent.problem.subset import Gatherer
from resolvent.simulator.device_memory import memory_limit, party_state_shapes, tree_bytes
from resolvent.simulator.plan import Plan
from resolvent.xla.shapes import shapes_of

__all__ = ["check_memory"]

_SMALL_SHARE = 1e-4  # share of the memory; a model that takes less is not examined further
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


class _Sizes(NamedTuple):
    """Bytes.

    Attributes:
        model: a model's parameters.
        server: the server's state.
        parties: the states of all parties on the device.
        replies: the replies of a cohort in all phases.
    """

    model: int
    server: int
    parties: int
    replies: int

    @property
    def total(self) -> int:
        """What a run has in memory at least: the states before and after a round, the replies and a working copy."""
        return 2 * self.server + 2 * self.parties + self.replies + self.model


def check_memory(plan: Plan) -> None:
    """Compare the models and states that a run has in memory at once with the memory of the device.

    Raises:
        InputError: they do not fit. The message has their sizes and the memory.
    """
    model = shapes_of(plan.task.init, keys.initial_key(0))
    limit, parties = memory_limit(), plan.task.parties
    if tree_bytes(model) * (parties + plan.cohort_size) < _SMALL_SHARE * limit:
        return
    try:
        sizes = _sizes_of(plan, model)
    except (TypeError, ValueError, KeyError, AttributeError):
        return  # the parts do not fit together, which is reported when they are traced
    if sizes.total > limit:
        raise InputError(
            f"the run needs at least {_amount(sizes.total)} of memory, and the device has {_amount(limit)}: the model "
            f"takes {_amount(sizes.model)}, the server's state {_amount(sizes.server)}, the states of the {parties} "
            f"parties {_amount(sizes.parties)}, and the replies of {plan.cohort_size} parties in a round "
            f"{_amount(sizes.replies)}. Use a smaller model, a participation with fewer parties per round, "
            "such as Uniform(cohort=10), or memory='host' for the parties' states")


def _sizes_of(plan: Plan, model: PyTree[Any]) -> _Sizes:
    task, parties = plan.task, plan.task.parties
    server = jax.eval_shape(lambda w: initial_server(plan.algorithm, w, jnp.full(parties, 1 / parties)), model)
    on_device = 0 if plan.memory == "host" else 1 if plan.pools_data else parties
    if plan.divides_parties:
        on_device = -(-parties // jax.device_count())
    problem = task.problem
    if problem is None:
        assert task.model is not None
        assert task.data is not None
        problem = Gatherer(task.model, task.data).template
    return _Sizes(tree_bytes(model), tree_bytes(server),
                  on_device * tree_bytes(party_state_shapes(plan.algorithm, problem)) if on_device else 0,
                  plan.cohort_size * tree_bytes(reply_shapes(plan.algorithm, model)))


def _amount(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"

"""Refuse a run that the machine's memory cannot hold, before anything is allocated."""

from typing import NamedTuple

import jax

from resolvent.errors import InputError
from resolvent.simulator.plan import Plan
from resolvent.simulator.storage.device_memory import memory_limit, tree_bytes

__all__ = ["check_memory"]

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
    limit, parties, sizes = memory_limit(), plan.task.parties, _sizes_of(plan)
    if sizes.total > limit:
        raise InputError(
            f"the run needs at least {_amount(sizes.total)} of memory, and the device has {_amount(limit)}: the model "
            f"takes {_amount(sizes.model)}, the server's state {_amount(sizes.server)}, the states of the {parties} "
            f"parties {_amount(sizes.parties)}, and the replies of {plan.cohort_size} parties in a round "
            f"{_amount(sizes.replies)}. Use a smaller model, a participation with fewer parties per round, "
            "such as Uniform(cohort=10), or memory='host' for the parties' states")


def _sizes_of(plan: Plan) -> _Sizes:
    description, parties = plan.description, plan.task.parties
    on_device = 0 if plan.memory == "host" else 1 if plan.pools_data else parties
    if plan.divides_parties:
        on_device = -(-parties // jax.device_count())
    return _Sizes(tree_bytes(description.model), tree_bytes(description.server),
                  on_device * tree_bytes(description.party), plan.cohort_size * tree_bytes(description.replies))


def _amount(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"

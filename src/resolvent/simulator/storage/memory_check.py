"""Refuse a run that the machine's memory cannot hold, before anything is allocated."""

import jax

from resolvent.errors import InputError
from resolvent.simulator.plan import Plan
from resolvent.simulator.storage.device_memory import memory_limit, tree_bytes

__all__ = ["check_memory"]

_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def check_memory(plan: Plan) -> None:
    """Compare the models and states that a run has in memory at once with the memory of the device.

    These are at least the states before and after a round, the replies and a working copy of the model.

    Raises:
        InputError: they do not fit. The message has their sizes and the memory.
    """
    description, parties, limit = plan.description, plan.task.parties, memory_limit()
    on_device = 0 if plan.memory == "host" else 1 if plan.pools_data else parties
    if plan.divides_parties:
        on_device = -(-parties // jax.device_count())
    model, server = tree_bytes(description.model), tree_bytes(description.server)
    states, replies = on_device * tree_bytes(description.party), plan.cohort_size * tree_bytes(description.replies)
    if (total := 2 * server + 2 * states + replies + model) > limit:
        raise InputError(
            f"the run needs at least {_amount(total)} of memory, and the device has {_amount(limit)}: the model "
            f"takes {_amount(model)}, the server's state {_amount(server)}, the states of the {parties} "
            f"parties {_amount(states)}, and the replies of {plan.cohort_size} parties in a round "
            f"{_amount(replies)}. Use a smaller model, a participation with fewer parties per round, "
            "such as Uniform(cohort=10), or memory='host' for the parties' states")


def _amount(size: float) -> str:
    unit = 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {_UNITS[unit]}"

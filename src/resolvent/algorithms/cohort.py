"""The cohort of a round: who takes part, draws with replacement as a cohort, and the checks of a drawn cohort."""

from typing import Literal

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from resolvent.errors import InputError, shorten

__all__ = ["Cohort", "StragglerPolicy", "check_cohort", "check_ids"]

StragglerPolicy = Literal["keep", "drop"]


class Cohort(eqx.Module):
    """The parties of one round.

    The rows of a cohort are written back to the states of all parties as different rows, so no party may have two.

    Attributes:
        index: [C] party ids, all different.
        weight: [C] aggregation weights, not negative. They need not sum to one.
        shares: [C] lambda_k, which sum to one over all N parties.
        alive: [C] whether the party takes part.
        effort: [C] fraction of the solver's budget that the party does, in (0, 1].
        late: [C] whether the effort is less than planned: the party is a straggler, and its work is partial.
        info: name -> number of the round that a run records, such as the seconds of a virtual clock.
        began: [C] number of the round whose random keys and learning rates each party works with, such as that in which
            an asynchronous server sent its message; None: the present round.
        stragglers: ``keep`` or ``drop`` the work of parties that are late, if the algorithm has no policy of its own.

    Example:
        >>> cohort = Cohort.from_parties(jnp.array([2, 0]), jnp.array([0.25, 0.25, 0.5]))
        >>> cohort.weight.tolist()
        [0.5, 0.25]
    """

    index: Int[Array, " C"]
    weight: Float[Array, " C"]
    shares: Float[Array, " C"]
    alive: Bool[Array, " C"]
    effort: Float[Array, " C"]
    late: Bool[Array, " C"]
    info: dict[str, Array] = eqx.field(default_factory=dict)
    began: Int[Array, " C"] | None = None
    stragglers: StragglerPolicy = eqx.field(static=True, default="keep")

    @classmethod
    def from_parties(cls, index: Int[Array, " C"], shares: Float[Array, " N"]) -> "Cohort":
        """Different parties who all take part with full effort, weighted by their shares.

        Args:
            index: [C] party ids, all different.
            shares: [N] lambda_k of all parties.
        """
        ones, cohort_shares = jnp.ones(index.shape, shares.dtype), shares[index]
        return cls(index, cohort_shares, cohort_shares, ones > 0, ones, ones < 0)

    @classmethod
    def from_draws(cls, draws: Int[Array, " C"], shares: Float[Array, " N"]) -> "Cohort":
        """The cohort of draws with replacement: a drawn party has one row, with its number of draws / C as weight.

        It takes part once, with full effort. A cohort has as many rows as draws, because shapes are static. Rows that
        repeats leave free have weight 0 and parties that do not take part: the first ids that were not drawn.

        Args:
            draws: [C] party ids, with repeats; C is at most N.
            shares: [N] lambda_k of all parties.

        Example:
            >>> cohort = Cohort.from_draws(jnp.array([5, 2, 5, 5]), jnp.ones(6) / 6)
            >>> cohort.index.tolist(), cohort.weight.tolist(), cohort.alive.tolist()
            ([2, 5, 0, 1], [0.25, 0.75, 0.0, 0.0], [True, True, False, False])
        """
        size = len(draws)
        ascending, rows = jnp.sort(draws), jnp.arange(size)
        row_of_draw = jnp.cumsum(jnp.append(False, ascending[1:] != ascending[:-1]))
        distinct = row_of_draw[-1] + 1
        # At least C - distinct of the ids 0, ..., C-1 were not drawn, which are enough for the free rows.
        was_drawn = jnp.zeros(size, bool).at[draws].set(True, mode="drop")
        free = jnp.roll(jnp.argsort(was_drawn, stable=True), distinct).astype(draws.dtype)
        index = jnp.where(rows < distinct, free.at[row_of_draw].set(ascending), free)
        count = jnp.zeros(size, shares.dtype).at[row_of_draw].add(1)
        cohort = cls.from_parties(index, shares)
        return cls(index, count / size, cohort.shares, rows < distinct, cohort.effort, cohort.late)


def check_cohort(cohort: Cohort, *, rows: int, parties: int, owner: str, start: int = 0) -> None:
    """Refuse a cohort, or the cohorts of several rounds, that a participation drew wrongly.

    Args:
        cohort: leaves [C], or [R, C] for several rounds; not traced.
        rows: C, the participation's ``capacity``.
    """
    for name in ("index", "weight", "shares", "alive", "effort", "late"):
        shape = np.shape(getattr(cohort, name))
        if shape[-1:] != (rows,):
            raise InputError(f"{owner} drew a cohort whose {name} has shape {shape[-1:]}, but its capacity is {rows}: "
                             f"return {rows} entries in each round")
    check_ids(cohort.index, parties=parties, owner=owner, start=start)
    weight, effort = np.asarray(cohort.weight), np.asarray(cohort.effort)
    if (wrong := weight[~(np.isfinite(weight) & (weight >= 0))]).size:
        raise InputError(f"{owner} drew a party with weight {wrong[0]}: weights must be finite and not negative")
    if (wrong := effort[~((effort >= 0) & (effort <= 1))]).size:
        raise InputError(f"{owner} drew a party with effort {wrong[0]}: efforts must lie in (0, 1]")


def check_ids(index: ArrayLike, *, parties: int | None, owner: str, start: int = 0) -> None:
    """Refuse cohorts with a party that does not exist, or with a party in two rows; see ``check_cohort``.

    The ids are [C] or [R, C], and ``parties`` is None if N is not known.
    """
    ids = np.atleast_2d(np.asarray(index))
    if parties is not None and (at := np.argwhere((ids < 0) | (ids >= parties))).size:
        raise InputError(f"{owner} drew party {ids[tuple(at[0])]} in round {start + at[0, 0]}, but parties are "
                         f"numbered 0 to {parties - 1}")
    ascending = np.sort(ids, axis=1)
    if (at := np.argwhere(ascending[:, 1:] == ascending[:, :-1])).size:
        raise InputError(f"{owner} drew party {ascending[tuple(at[0])]} twice in round {start + at[0, 0]}: each party "
                         "has one row of a cohort. Draw without replacement, or merge repeats with "
                         f"Cohort.from_draws(draws, shares). The cohort: {shorten(ids[at[0, 0]].tolist())}")

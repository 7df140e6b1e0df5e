"""What the server, another site, and several sites together learn of the replies of a site in a plan."""

import math
from collections.abc import Callable, Iterator, Mapping

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.combinator import contains, innermost
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.combinators.private_parties import PrivateParties
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.differential_privacy.budget import PrivacyBudget
from resolvent.differential_privacy.parties import noise_parties, party_epsilons
from resolvent.errors import InputError
from resolvent.federation.secure.rules import SumRules

__all__ = ["DELTA", "visibility"]

DELTA = 1e-5
"""At which a federation states the epsilon of a site."""


def visibility(methods: Mapping[str, Algorithm], privacy: PrivacyBudget | None, rounds: Callable[[str], int], *,
               min_sites: int = 2) -> Iterator[str]:
    """Lines about each method of a plan.

    Args:
        methods: label -> algorithm.
        privacy: the settings of secure sums; None if the server sees the replies.
        rounds: label -> number of rounds.
        min_sites: the smallest number of sites of a sum in which this site takes part.
    """
    rules = SumRules.of_plan(privacy, min_sites=min_sites)
    for label, algorithm in methods.items():
        if isinstance(innermost(algorithm), LocalTraining):
            yield f"{label}: the site trains alone, and sends no reply"
            continue
        is_summed = isinstance(algorithm, FixedPointSums)
        if rules is None or not is_summed:
            yield (f"{label}: the server sees each reply of this site. Another site sees the models that the "
                   "server makes of all replies; several sites together see no more, unless the server helps them")
        else:
            n = max(rules.min_sites, noise_parties(algorithm))
            share = "all" if rules.threshold == 1 else f"more than {_percent(rules.threshold)}"
            yield (f"{label}: the server sees the sum of the replies of at least {n} sites, and of {share} of those "
                   "asked; no reply. Another site sees the models made of it. Sites that work together with the server "
                   "see the sum of the replies of the others: all but one of the sites of a sum see the reply of the "
                   f"last one. A server that breaks the protocol sees no more, as long as {_helpers(rules.threshold)}")
        if contains(algorithm, PrivateParties):
            yield f"{label}: {_epsilons(algorithm, rounds(label), rules is not None and is_summed)}"
    if rules is not None:
        yield ("In any case the server knows the names and kinds of the columns and in which rounds it takes part. "
               "Numbers of rows and scores are summed as well, and those of columns in an experiment; a regression "
               "reports its own to the server")


def _helpers(threshold: float) -> str:
    """How many of the asked sites may help a server without two lists of sites that both have enough signatures."""
    if threshold == 1:
        return "not all other asked sites help it"
    share = _percent(2 * threshold - 1)
    return "none of the asked sites helps it" if share == "0%" else f"fewer than {share} of the asked sites help it"


def _percent(share: float) -> str:
    """In percent, rounded down, so that neither "more than" nor "fewer than" this share claims too much."""
    return f"{math.floor(100 * share + 1e-9)}%"


def _epsilons(algorithm: Algorithm, rounds: int, is_summed: bool) -> str:
    """The epsilon of a site as a whole, against another site, the server, and the server with the help of k sites."""
    parties = noise_parties(algorithm)
    helpers = sorted({0, 1, parties // 2, parties - 1}) if is_summed and parties > 1 else [0]
    try:
        of_helpers = {k: party_epsilons(algorithm, rate=1.0, rounds=rounds, delta=DELTA, colluding=k) for k in helpers}
    except InputError as error:  # such as without dp-accounting
        return f"the epsilon of this site as a whole is not computed: {error}"
    alone = of_helpers[0]
    against = f"{alone.secure_server if is_summed else alone.server:.3g} against the server"
    helped = "".join(f", {spent.secure_server:.3g} if {k} of the others tell it, or each other, their noise"
                     for k, spent in of_helpers.items() if k > 0)
    return (f"the epsilon of this site as a whole after {rounds} rounds, at delta {DELTA:g}, is "
            f"{alone.known_cohorts:.3g} against another site, which knows its own noise, and {against}{helped}. A "
            "personal model has none, and stays at the site")

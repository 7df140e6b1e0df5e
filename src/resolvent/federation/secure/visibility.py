"""What the server, another site, and several sites together learn of the replies of a site in a plan."""

from collections.abc import Iterator, Mapping

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.methods.local import LocalTraining
from resolvent.algorithms.privacy import PrivacyBudget
from resolvent.federation.secure.rules import SumRules

__all__ = ["visibility"]


def visibility(methods: Mapping[str, Algorithm], privacy: PrivacyBudget | None, *,
               min_sites: int = 2) -> Iterator[str]:
    """Lines about each method of a plan.

    Args:
        methods: label -> algorithm.
        privacy: the settings of secure sums; None if the server sees the replies.
        min_sites: the smallest number of sites of a sum in which this site takes part.
    """
    rules = SumRules.of_plan(privacy, min_sites=min_sites)
    for label, algorithm in methods.items():
        if isinstance(algorithm, LocalTraining):
            yield f"{label}: the site trains alone, and sends no reply"
        elif rules is None or not isinstance(algorithm, FixedPointSums):
            yield (f"{label}: the server sees each reply of this site. Another site sees the models that the "
                   "server makes of all replies; several sites together see no more, unless the server helps them")
        else:
            n = rules.min_sites
            yield (f"{label}: the server sees the sum of the replies of at least {n} sites, and of more than "
                   f"{rules.threshold:.0%} of those asked; no reply. Another site sees the models made of it. "
                   f"Sites that work together with the server see the sum of the replies of the others: all but one "
                   f"of the sites of a sum see the reply of the last one. A server that breaks the protocol sees no "
                   f"more, as long as fewer than {max(0, 2 * rules.threshold - 1):.0%} of the asked sites help it")
    if rules is not None:
        yield ("In any case the server knows the names and kinds of the columns and in which rounds it takes part. "
               "Numbers of rows and scores are summed as well, and those of columns in an experiment; a regression "
               "reports its own to the server")

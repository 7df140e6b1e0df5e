"""Weights of rows and of classes in the loss, on which sites agree without pooling rows.

Each site reports the sum of the weights of its training rows, by class. With these sums the weight of a row is the one
that it has in a simulation with the rows of all sites:

.. code-block:: text

    f_c  = 1, the class's weight of the experiment, or with balanced classes sum_c S_c / (K S_c)
    s_i  = r_i f_c / (sum_c f_c S_c / n)

S_c is the sum of the rows' own weights r_i over all training rows of class c, K the number of classes that occur, and n
the number of training rows. With ``balanced_per_party`` the factors f_c are computed from the sums of each site alone.
"""

from collections.abc import Mapping

from resolvent.data.weights import ClassWeights
from resolvent.errors import InputError, shorten

Sums = Mapping[str, float]
"""Class -> sum of the weights of training rows; for regression the only key is the empty text."""


def agree_weights(sums: Mapping[str, Sums], rows: Mapping[str, int], founders: tuple[str, ...],
                  class_weight: ClassWeights | None) -> dict[str, dict[str, float]]:
    """Site -> class -> the number by which the site multiplies the weights of its rows of this class.

    Args:
        sums: the sums of each site.
        rows: number of training rows of each site.
        founders: the sites with which the run began; only their sums count, so that a site that joins later changes no
            weight of the others.
        class_weight: the experiment's weights of classes; None: all 1.
    """
    pooled: dict[str, float] = {}
    for site in founders:
        for name, total in sums[site].items():
            pooled[name] = pooled.get(name, 0.0) + total
    if class_weight is not None and "" in pooled:
        raise InputError("class_weight: it is for classes, and the label is a number: remove the setting")
    if isinstance(class_weight, Mapping):
        _check_names(class_weight, pooled)
    factors = {site: _factors(of_site if class_weight == "balanced_per_party" else pooled, class_weight)
               for site, of_site in sums.items()}
    total = sum(factors[site].get(name, 1.0) * weight for site in founders for name, weight in sums[site].items())
    mean = total / sum(rows[site] for site in founders)
    if not mean > 0:
        raise InputError("all training rows have weight 0: give some of them a positive weight")
    return {site: {name: factors[site].get(name, 1.0) / mean for name in {**pooled, **of_site}}
            for site, of_site in sums.items()}


def _factors(totals: Sums, class_weight: ClassWeights | None) -> dict[str, float]:
    if class_weight is None:
        return {}
    if isinstance(class_weight, Mapping):
        return {str(name): float(weight) for name, weight in class_weight.items()}
    occurring = {name: total for name, total in totals.items() if total > 0}
    return {name: sum(occurring.values()) / (len(occurring) * total) for name, total in occurring.items()}


def _check_names(weights: Mapping[str, float], classes: Mapping[str, float]) -> None:
    named = {str(name) for name in weights}
    unknown, missing = named - {*classes}, {*classes} - named
    for title, names in (("there is no class", unknown), ("there is no weight for class", missing)):
        if names:
            raise InputError(f"class_weight: {title} {shorten(repr(min(names)))}; the classes of the sites are "
                             f"{shorten(', '.join(sorted(classes)))}: give a weight for each of them")

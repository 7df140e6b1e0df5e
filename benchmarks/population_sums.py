"""What a sum of log-likelihoods says about the sites behind it: their gains, solved from the sum.

    python benchmarks/population_sums.py --out benchmarks/population_sums.json

The advice to a site borrows strength from the gains of the others: it integrates over a grid of populations, and all
that a site needs of the others is the sum of the logarithms of their likelihoods at each node. Secure sums could give
each site this sum and nothing else. Each term is a known function of three numbers of a site (its measured gain, the
variance of the error, and how likely it is a stranger), and the grid has 1,716 nodes. Here whoever has the sum, in the
integers that secure sums have, solves for the three numbers of every site by least squares. A row of the JSON has, for
a number of sites, the share of the sites whose gain is found within 0.001 of skill, over worlds like those of
``benchmarks/advice.py``, and the median error. Sites have no names in the sum; from eight sites on their sizes, which
all know, enter the terms and would tell which is which. They are left out here.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from resolvent.comparisons.judgement import population
from resolvent.comparisons.judgement.population import Strangers

_SCALE, _WIDE, _SHARE, _FRACTION = 0.1, 0.5, 0.1, 24  # of the advice; binary digits of a score in a secure sum
_WORLDS, _STARTS, _FOUND = 10, 12, 0.001
Array = NDArray[np.float64]


def nodes_of_rule() -> tuple[Array, Array, Array]:
    """[G] means, [G] spreads and [J] shares of strangers of the first grid of ``population_posterior``."""
    prior = np.array([1.0, 0.5]) * _SCALE
    nodes, _ = population._grid(np.stack([-4 * prior, 4 * prior]))
    strangers = Strangers(_SHARE, _WIDE, np.zeros(1), np.zeros(1), np.ones(1))
    return nodes[:, 0], nodes[:, 1], population._strangers(strangers, 1)[0]


def sum_of(numbers: Array, nodes: tuple[Array, Array, Array]) -> Array:
    """[G J] the sum over the sites.

    Args:
        numbers: [K, 3] gain, logarithm of the error's standard deviation, logarithm of a stranger's likelihood.
    """
    mean, spread, share = nodes
    of_members = population._components(np.repeat(mean[:, None], len(numbers), 1), spread, numbers[:, 0],
                                        np.exp(2 * numbers[:, 1])).of_unit
    return population._log_likelihoods(of_members, np.broadcast_to(numbers[:, 2], of_members.shape), share).ravel()


def solve(total: Array, sites: int, nodes: tuple[Array, Array, Array], rng: np.random.Generator) -> Array:
    """[K, 3] numbers of sites whose sum is the total, the best of several starts."""
    best = None
    for _ in range(_STARTS):
        start = np.stack([rng.normal(0, 0.1, sites), np.log(rng.uniform(0.02, 0.1, sites)), rng.normal(0, 1, sites)], 1)
        found = least_squares(lambda x: sum_of(x.reshape(-1, 3), nodes) - total, start.ravel(), max_nfev=200,
                              x_scale=np.tile([0.1, 0.5, 1.0], sites), xtol=1e-15, ftol=1e-15, gtol=1e-15)
        best = found if best is None or found.cost < best.cost else best
        if best.cost < len(total) * 4.0**-_FRACTION:
            break
    assert best is not None
    return np.asarray(best.x.reshape(-1, 3))


def measure(sites: int) -> dict[str, Any]:
    """One row of the table."""
    rng, nodes, errors = np.random.default_rng(sites), nodes_of_rule(), []
    for _ in range(_WORLDS):
        gains = rng.normal(0.04, 0.05, sites)
        deviations = 0.5 / np.sqrt(rng.uniform(40, 400, sites))
        measured = gains + deviations * rng.normal(size=sites)
        numbers = np.stack([measured, np.log(deviations), rng.normal(0, 1, sites)], axis=1)
        total = np.round(sum_of(numbers, nodes) * 2**_FRACTION) / 2**_FRACTION
        found = solve(total, sites, nodes, rng)
        order, known = np.argsort(found[:, 0]), np.sort(numbers[:, 0])
        errors.append(np.abs(found[order, 0] - known))
    of_all = np.concatenate(errors)
    return {"sites": sites, "worlds": _WORLDS, "nodes": len(nodes[0]) * len(nodes[2]),
            "found": float(np.mean(of_all < _FOUND)), "median_error": float(np.median(of_all))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    rows = []
    for sites in (3, 4, 5, 8):
        rows.append(measure(sites))
        print(rows[-1], flush=True)
    text = json.dumps(rows, indent=1)
    if (out := parser.parse_args().out) is not None:
        out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()

"""What the largest share of a party costs, and what it stops: robust presets on digits, with and without a false claim.

    python benchmarks/shares.py [--seeds 3] [--out benchmarks/shares.json] [--methods rfa ...]

scikit-learn's digits, 40 rounds. ``unequal``: ten parties of three classes whose sizes differ (the logarithms have a
standard deviation of 1.2), and ``few``: four such parties of ten classes; nobody attacks. ``claim``: five parties of
equal size and ten classes; the last one says that it has 20 times its rows, and sends minus the model that it trained.
``honest``: the same without claim and attack. Values are mean test accuracies in percent over the honest parties and
the seeds, of the model that a party uses. ``limit`` is the largest share of a party in the weight of a round: any, or
the method's own.
"""

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
from typing_extensions import override

import resolvent as rv
from resolvent.algorithms.aggregators.aggregator import MAX_SHARE, aggregators_of
from resolvent.algorithms.combinators.combinator import Wrapped
from resolvent.algorithms.participation.rules import ParticipationWrapper
from resolvent.math import tree

ROUNDS, MULTIPLE, HONEST, LIAR = 40, 20, 4, 4
SOLVER = rv.SGD(learning_rate=0.05, batch_size=20, epochs=2)
MODEL = rv.models.logistic(64, 10)
METHODS: dict[str, Callable[[], rv.Algorithm]] = {
    "fedavg": lambda: rv.fedavg(SOLVER),
    "rfa": lambda: rv.rfa(SOLVER),
    "coordinate_median": lambda: rv.coordinate_median(SOLVER),
    "robust (TrimmedMean)": lambda: rv.robust(SOLVER, rv.aggregators.TrimmedMean(0.3)),
    "robust (MultiKrum)": lambda: rv.robust(SOLVER, rv.aggregators.MultiKrum(0.2)),
    "robust (Krum)": lambda: rv.robust(SOLVER, rv.aggregators.Krum(0.2)),
    "robust (NormBound)": lambda: rv.robust(SOLVER, rv.aggregators.NormBound()),
    "fedgeomed_plus": lambda: rv.fedgeomed_plus(SOLVER, sigma=0.1, delta=1),
    "fedcomed_plus": lambda: rv.fedcomed_plus(SOLVER, sigma=0.03, delta=0.3),
    "robust_interpolation": lambda: rv.robust_interpolation(SOLVER),
    "protected_fedplus": lambda: rv.protected_fedplus(SOLVER),
}


class Claims(ParticipationWrapper):
    """A participation in which the last party says that it has a multiple of its rows."""

    inner: rv.participation.Participation = rv.participation.Full()

    @override
    def shares(self, sizes: Any) -> Any:
        return self.inner.shares(sizes.at[-1].multiply(MULTIPLE))

    @override
    def draw(self, state: Any, key: Any, t: Any, sizes: Any) -> tuple[rv.participation.Cohort, Any]:
        return self.inner.draw(state, key, t, sizes.at[-1].multiply(MULTIPLE))


class MinusModel(rv.combinators.Attacked):
    """The malicious parties send minus what they would send, instead of an update in the opposite direction."""

    @override
    def party(self, inner: Any, state: Any, message: Wrapped, *rest: Any, phase: int) -> Any:
        after, reply, info = rv.combinators.Combinator.party(self, inner, state, message, *rest, phase=phase)
        return after, tree.where(message.extra, tree.scale(-1, reply), reply), info


def main() -> None:
    """Measure, print, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=[*METHODS],
                        help="measure these again; the file's rows of the others stay")
    options = parser.parse_args()
    rows = [] if options.methods == [*METHODS] else [
        row for row in json.loads(options.out.read_text())["rows"] if row["method"] not in options.methods]
    for name in options.methods:
        own = [of for part in aggregators_of(METHODS[name]()) if (of := part.max_share) is not None]
        for limit in (1.0, min(own, default=MAX_SHARE)):
            row: dict[str, Any] = {"method": name, "limit": limit}
            for table in ("unequal", "few", "honest", "claim"):
                row[table] = round(statistics.mean(accuracy(name, limit, table, s) for s in range(options.seeds)), 1)
            rows.append(row)
            print(json.dumps(row), flush=True)
        jax.clear_caches()
    if options.out:
        from records import as_json  # here, because a test loads this file without its folder

        facts = {"rounds": ROUNDS, "seeds": options.seeds, "multiple": MULTIPLE, "jax": jax.__version__,
                 "command": f"python benchmarks/shares.py --seeds {options.seeds} --out {options.out}"}
        options.out.write_text(as_json(facts, rows=sorted(rows, key=lambda row: [*METHODS].index(row["method"]))))


def accuracy(name: str, limit: float | None, table: str, seed: int, rounds: int = ROUNDS) -> float:
    """Mean test accuracy in percent of the honest parties; a limit of None is the method's own."""
    parties, classes, spread = {"unequal": (10, 3, 1.2), "few": (4, 10, 1.2)}.get(table, (5, 10, 0.0))
    data = rv.datasets.digits(parties=parties, classes_per_party=classes, size_spread=spread, seed=seed)
    algorithm = METHODS[name]()
    if table == "claim":
        algorithm = MinusModel(algorithm, rv.attacks.Attack(), parties=(LIAR,))
    if limit is not None:
        algorithm = rv.combinators.ShareLimit(algorithm, limit)
    result = rv.simulate(algorithm, MODEL, data, rounds=rounds, seed=seed, evaluate_every=rounds, progress=False,
                         participation=Claims() if table == "claim" else rv.participation.Full())
    scores = result.scores().iloc[-1].to_numpy()
    return 100 * float(scores[:HONEST].mean() if table in ("honest", "claim") else scores.mean())


if __name__ == "__main__":
    main()

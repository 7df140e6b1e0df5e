"""Which defence withstands which attack? Robust methods against eight attacks, with 20 % and 40 % malicious parties.

    python benchmarks/defences.py [--seeds 3] [--out benchmarks/defences.json] [--figure benchmarks/defences.svg]
    python benchmarks/defences.py --redraw --out benchmarks/defences.json --figure benchmarks/defences.svg
    python benchmarks/defences.py --continue --out benchmarks/defences.json     # only the cells that the file lacks

scikit-learn's digits, divided among 20 parties of equal size that have all ten classes. A row is a method with a share
of malicious parties. Its values are test accuracies in percent: the mean over the honest parties and over the seeds, of
the model that a party uses. ``none`` is the method without an attack. A seed draws the division, the minibatches and
the first model. The malicious parties are the same ones in all runs. Attacks have the library's default strength, and
an aggregator that asks for the share of malicious replies gets the true one, or the largest share that it allows.
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
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import resolvent as rv
from resolvent.simulate.plots import style

PARTIES, ROUNDS, SHARES, TOLERANCE = 20, 100, (0.2, 0.4), 2.0
SOLVER = rv.SGD(learning_rate=0.05, batch_size=20, epochs=2)
MODEL = rv.models.logistic(64, 10)
ATTACKS = {"sign flip": rv.attacks.SignFlip(), "ALIE": rv.attacks.ALIE(), "IPM": rv.attacks.IPM(),
           "Gaussian": rv.attacks.Gaussian(), "label flip": rv.attacks.LabelFlip(), "NaN": rv.attacks.NaN(),
           "mimic": rv.attacks.Mimic(), "min-max": rv.attacks.MinMax()}
COLUMNS = ("none", *ATTACKS)


def robust(aggregator: Callable[[float], Any], largest: float = 1.0) -> Callable[[float], rv.Algorithm]:
    """FedAvg with an aggregator that gets the share of malicious replies, or the largest share that it allows."""
    return lambda share: rv.robust(SOLVER, aggregator(min(share, largest)))


A = rv.aggregators


def mixed_trimmed_mean(share: float) -> Any:
    """The trimmed mean of replies that are replaced by the means of their nearest neighbours."""
    return A.NearestNeighbourMixing(A.TrimmedMean(share=share), share=share)


METHODS: dict[str, Callable[[float], rv.Algorithm]] = {
    "fedavg": lambda share: rv.fedavg(SOLVER),
    "rfa": lambda share: rv.rfa(SOLVER),
    "coordinate_median": lambda share: rv.coordinate_median(SOLVER),
    "TrimmedMean": robust(lambda share: A.TrimmedMean(share=share)),
    "Krum": robust(lambda share: A.Krum(share=share)),
    "MultiKrum": robust(lambda share: A.MultiKrum(share=share)),
    "Bulyan": robust(lambda share: A.Bulyan(share=share), largest=0.2),
    "CentredClipping": robust(lambda share: A.CentredClipping(radius=0.1)),
    "NormBound": robust(lambda share: A.NormBound()),
    "Mixing": robust(lambda share: mixed_trimmed_mean(share)),
    "Momentum of Mixing": lambda share: rv.combinators.Momentum(rv.robust(SOLVER, mixed_trimmed_mean(share)),
                                                                decay=0.9),
    "fedavg_plus": lambda share: rv.fedavg_plus(SOLVER, sigma=0.1, delta=1),
    "fedgeomed_plus": lambda share: rv.fedgeomed_plus(SOLVER, sigma=0.1, delta=1),
    "fedcomed_plus": lambda share: rv.fedcomed_plus(SOLVER, sigma=0.03, delta=0.3),
    "local": lambda share: rv.local(SOLVER),
}


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of divisions of the data")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw them")
    parser.add_argument("--redraw", action="store_true", help="run nothing; draw the JSON file of --out again")
    parser.add_argument("--continue", action="store_true", dest="continues",
                        help="measure only the cells that the JSON file of --out lacks")
    options = parser.parse_args()
    if options.redraw:
        record = json.loads(options.out.read_text())
    else:
        known = json.loads(options.out.read_text())["rows"] if options.continues else []
        record = {"parties": PARTIES, "rounds": ROUNDS, "seeds": options.seeds, "tolerance": TOLERANCE,
                  "jax": jax.__version__,
                  "command": f"python benchmarks/defences.py --seeds {options.seeds} --out {options.out} "
                             f"--figure {options.figure}",
                  "rows": [row for name in METHODS for row in rows_of(name, options.seeds, known)]}
    if options.out and not options.redraw:
        rows = ",\n  ".join(json.dumps(row) for row in record["rows"])
        facts = {key: value for key, value in record.items() if key != "rows"}
        options.out.write_text(json.dumps(facts, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n')
    if options.figure:
        draw(record).savefig(options.figure, metadata={"Date": None})


def rows_of(name: str, seeds: int, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The accuracies of a method, a row for each share of malicious parties; cells of known rows stay."""
    rows = []
    for share in SHARES:
        row: dict[str, Any] = {"method": name, "malicious": share}
        row |= next((old for old in known if (old["method"], old["malicious"]) == (name, share)), {})
        for column in (c for c in COLUMNS if c not in row):
            accuracies = [accuracy(METHODS[name](share), column, share, seed) for seed in range(seeds)]
            row[column] = round(100 * statistics.mean(accuracies), 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
    jax.clear_caches()
    return rows


def accuracy(algorithm: rv.Algorithm, attack: str, share: float, seed: int) -> float:
    """Mean test accuracy over the honest parties after the last round."""
    data = rv.datasets.digits(parties=PARTIES, classes_per_party=10, size_spread=0.0, seed=seed)
    attacked = algorithm if attack == "none" else rv.attacked(algorithm, ATTACKS[attack], share=share)
    result = rv.simulate(attacked, MODEL, data, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
    return float(result.scores().iloc[-1].to_numpy()[honest_parties(share)].mean())


def honest_parties(share: float) -> np.ndarray:
    """[N] which parties are honest; in every run the same ones, because the draw of ``attacked`` has its own seed."""
    attacked = rv.attacked(rv.fedavg(SOLVER), rv.attacks.NaN(), share=share)
    shares = jax.numpy.full(PARTIES, 1 / PARTIES)
    return ~np.asarray(attacked.init(MODEL.init(jax.random.key(0)), shares).extra)


def draw(record: dict[str, Any]) -> Figure:
    """The points that each method loses to each attack; a panel for each share of malicious parties."""
    with mpl.rc_context({**style, "axes.grid": False, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(10.5, 5.2), layout="constrained")
        panels = figure.subplots(1, len(SHARES), sharey=True)
        for axes, share in zip(panels, SHARES, strict=True):
            rows = [row for row in record["rows"] if row["malicious"] == share]
            losses = np.array([[row["none"] - row[attack] for attack in ATTACKS] for row in rows])
            image = axes.imshow(losses, cmap="cividis_r", norm=mpl.colors.SymLogNorm(2, vmin=0, vmax=90, base=10),
                                aspect="auto")
            for (i, j), loss in np.ndenumerate(losses):
                axes.text(j, i, f"{max(loss, -0.0):.1f}" if loss >= 0.05 else "0" if loss > -0.05 else f"{loss:.1f}",
                          ha="center", va="center", fontsize=8, color="white" if loss > 12 else "black")
            axes.set_xticks(range(len(ATTACKS)), list(ATTACKS), rotation=30, ha="right", rotation_mode="anchor")
            axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
            axes.set_title(f"{share:.0%} of the parties are malicious")
        figure.colorbar(image, ax=panels, label="points of test accuracy lost", ticks=[0, 1, 2, 5, 10, 20, 50, 90],
                        format="%g")
    return figure


if __name__ == "__main__":
    main()

"""Which defence withstands which attack? Robust methods against nine attacks, with 20 % and 40 % malicious parties.

    python benchmarks/defences.py [--seeds 3] [--out benchmarks/defences.json] [--figure benchmarks/defences.svg]
    python benchmarks/defences.py --redraw --out benchmarks/defences.json --figure benchmarks/defences.svg
    python benchmarks/defences.py --continue --out benchmarks/defences.json     # only the cells that the file lacks

scikit-learn's digits, divided among 20 parties of equal size. In ``rows`` every party has all ten classes, in ``apart``
three. A row is a method with a share of malicious parties. Its values are test accuracies in percent: the mean over the
honest parties and over the seeds, of the model that a party uses. ``none`` is the method without an attack. A seed
draws the division, the minibatches and the first model. The malicious parties are the same ones in all runs. Attacks
have the library's default strength; the adaptive one knows the method's aggregator. An aggregator that asks for the
share of malicious replies gets the true one, or the largest share that it allows.
"""

import json
import os
import statistics
from collections.abc import Callable
from typing import Any

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import jax
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import resolvent as rv
from records import as_json, drawing_parser
from resolvent.algorithms.aggregators.aggregator import aggregators_of
from resolvent.simulator.record.plots import style

PARTIES, ROUNDS, SHARES, TOLERANCE, TOLERANCE_ALONE = 20, 100, (0.2, 0.4), 2.0, 1.0
CLASSES = {"rows": 10, "apart": 3}  # of each party
SHARES_OF = {"rows": SHARES, "apart": (0.4,)}
SOLVER = rv.SGD(learning_rate=0.05, batch_size=20, epochs=2)
MODEL = rv.models.logistic(64, 10)
ATTACKS = {"sign flip": rv.attacks.SignFlip(), "ALIE": rv.attacks.ALIE(), "IPM": rv.attacks.IPM(),
           "Gaussian": rv.attacks.Gaussian(), "label flip": rv.attacks.LabelFlip(), "NaN": rv.attacks.NaN(),
           "mimic": rv.attacks.Mimic(), "min-max": rv.attacks.MinMax()}
ADAPTIVE = "adaptive"
COLUMNS = ("none", *ATTACKS, ADAPTIVE)


def robust(aggregator: Callable[[float], Any], largest: float = 1.0) -> Callable[[float], rv.Algorithm]:
    """FedAvg with an aggregator that gets the share of malicious replies, or the largest share that it allows."""
    return lambda share: rv.robust(SOLVER, aggregator(min(share, largest)))


A = rv.aggregators


def mixed_trimmed_mean(share: float) -> Any:
    """The trimmed mean of replies that are replaced by the means of their nearest neighbours."""
    return A.NearestNeighbourMixing(A.TrimmedMean(share=share), share=share)


def momentum_of_mixing(share: float) -> rv.Algorithm:
    """Averages of updates, mixed with their nearest neighbours, of which the server takes the trimmed mean."""
    return rv.combinators.Momentum(rv.robust(SOLVER, mixed_trimmed_mean(share)), decay=0.9)


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
    "Momentum of Mixing": momentum_of_mixing,
    "fedavg_plus": lambda share: rv.fedavg_plus(SOLVER, sigma=0.1, delta=1),
    "fedgeomed_plus": lambda share: rv.fedgeomed_plus(SOLVER, sigma=0.1, delta=1),
    "fedcomed_plus": lambda share: rv.fedcomed_plus(SOLVER, sigma=0.03, delta=0.3),
    "local": lambda share: rv.local(SOLVER),
}
OF_CLASSES: dict[str, dict[str, Callable[[float], rv.Algorithm]]] = {"rows": METHODS, "apart": {
    **{name: METHODS[name] for name in ("Momentum of Mixing", "fedgeomed_plus")},
    "interpolation of Mixing": lambda share: rv.model_interpolation(SOLVER, momentum_of_mixing(share)),
    "interpolation of Fed+": lambda share: rv.model_interpolation(SOLVER, METHODS["fedgeomed_plus"](share)),
    "local": METHODS["local"],
}}


def main() -> None:
    """Measure, print, and write the files that are asked for."""
    parser = drawing_parser(__doc__)
    parser.add_argument("--continue", action="store_true", dest="continues",
                        help="measure only the cells that the JSON file of --out lacks")
    options = parser.parse_args()
    if options.redraw:
        tables = json.loads(options.out.read_text())
    else:
        known = json.loads(options.out.read_text()) if options.continues else {}
        facts = {"parties": PARTIES, "rounds": ROUNDS, "seeds": options.seeds, "tolerance": TOLERANCE,
                 "tolerance_alone": TOLERANCE_ALONE, "jax": jax.__version__,
                 "command": f"python benchmarks/defences.py --seeds {options.seeds} --out {options.out} "
                            f"--figure {options.figure}"}
        tables = {table: [row for name in OF_CLASSES[table]
                          for row in rows_of(table, name, options.seeds, known.get(table, []))]
                  for table in OF_CLASSES}
        if options.out:
            options.out.write_text(as_json(facts, **tables))
    if options.figure:
        draw(tables).savefig(options.figure, metadata={"Date": None})


def rows_of(table: str, name: str, seeds: int, known: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The accuracies of a method, a row for each share of malicious parties; cells of known rows stay."""
    rows = []
    for share in SHARES_OF[table]:
        row: dict[str, Any] = {"method": name, "malicious": share}
        row |= next((old for old in known if (old["method"], old["malicious"]) == (name, share)), {})
        # A party alone sends nothing, so that no attack changes an honest one.
        for column in (c for c in (COLUMNS if name != "local" or table == "rows" else COLUMNS[:1]) if c not in row):
            accuracies = [accuracy(OF_CLASSES[table][name](share), column, share, seed, CLASSES[table])
                          for seed in range(seeds)]
            row[column] = round(100 * statistics.mean(accuracies), 1)
        rows.append(row)
        print(json.dumps(row), flush=True)
    jax.clear_caches()
    return rows


def accuracy(algorithm: rv.Algorithm, attack: str, share: float, seed: int, classes: int) -> float:
    """Mean test accuracy over the honest parties after the last round."""
    data = rv.datasets.digits(parties=PARTIES, classes_per_party=classes, size_spread=0.0, seed=seed)
    attacked = algorithm if attack == "none" else rv.attacked(algorithm, attack_on(algorithm, attack), share=share)
    result = rv.simulate(attacked, MODEL, data, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, progress=False)
    return float(result.scores().iloc[-1].to_numpy()[honest_parties(share)].mean())


def attack_on(algorithm: rv.Algorithm, attack: str) -> rv.attacks.Attack:
    """The attack of a column; the adaptive one knows the aggregator of the method."""
    if attack != ADAPTIVE:
        return ATTACKS[attack]
    return rv.attacks.Adaptive(next(iter(aggregators_of(algorithm)), rv.aggregators.Mean()))


def honest_parties(share: float) -> np.ndarray:
    """[N] which parties are honest; in every run the same ones, because the draw of ``attacked`` has its own seed."""
    attacked = rv.attacked(rv.fedavg(SOLVER), rv.attacks.NaN(), share=share)
    shares = jax.numpy.full(PARTIES, 1 / PARTIES)
    return ~np.asarray(attacked.init(MODEL.init(jax.random.key(0)), shares).extra)


def draw(tables: dict[str, list[dict[str, Any]]]) -> Figure:
    """The points that each method loses, by share of malicious parties.

    Above, to each attack, where parties are alike. Below, against training alone, where they differ.
    """
    with mpl.rc_context({**style, "axes.grid": False, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(11, 8.2), layout="constrained")
        for part, table in zip(figure.subfigures(2, 1, height_ratios=[16, 6]), OF_CLASSES, strict=True):
            panels = part.subplots(1, len(SHARES_OF[table]), sharey=True, squeeze=False)[0]
            images = [draw_panel(axes, tables[table], table, share)
                      for axes, share in zip(panels, SHARES_OF[table], strict=True)]
            label = "points lost to the attack" if table == "rows" else "points below\ntraining alone"
            part.colorbar(images[0], ax=panels, label=label, ticks=[0, 2, 5, 10, 20, 50, 90], format="%g")
    return figure


def draw_panel(axes: Any, rows: list[dict[str, Any]], table: str, share: float) -> Any:
    """One panel: a row for each method, a column for each attack; empty where nothing is measured."""
    rows = [row for row in rows if row["malicious"] == share]
    is_alike = table == "rows"
    if is_alike:
        columns, reference = COLUMNS[1:], {row["method"]: row["none"] for row in rows}
    else:
        alone = next(row for row in rows if row["method"] == "local")["none"]
        rows = [row for row in rows if row["method"] != "local"]
        columns, reference = COLUMNS, {row["method"]: alone for row in rows}
    columns = [column for column in columns if any(column in row for row in rows)]
    losses = np.array([[reference[row["method"]] - row.get(column, np.nan) for column in columns] for row in rows])
    image = axes.imshow(losses, cmap="cividis_r", norm=mpl.colors.SymLogNorm(2, vmin=0, vmax=90, base=10),
                        aspect="auto")
    for (i, j), loss in np.ndenumerate(losses):
        text = "" if np.isnan(loss) else f"{loss:.1f}" if abs(loss) >= 0.05 else "0"
        axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if loss > 12 else "black")
    axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(rows)), [row["method"] for row in rows])
    axes.set_title(f"{'all ten' if is_alike else 'three'} classes per party, {share:.0%} malicious")
    return image


if __name__ == "__main__":
    main()

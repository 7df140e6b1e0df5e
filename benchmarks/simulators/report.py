"""The tables and the picture of the measurements in a JSON file."""

import json
from pathlib import Path
from typing import Any

__all__ = ["flops", "markdown", "picture", "report"]

_PEERS = ("PyTorch loop", "pfl", "Flower", "FedJAX")


def report(source: Path) -> None:
    """Draw the picture next to the JSON file; ``benchmarks/figures.py`` writes the tables."""
    picture(json.loads(source.read_text()), source.with_suffix(".svg"))
    print(f"written to {source.with_suffix('.svg')}")


def flops(facts: dict[str, Any]) -> float:
    """Floating-point operations of the matrix products of a round in which every party takes part, samples * forward
    and backward.

    The first layer of images and of features needs no gradient of its inputs; biases, activations and the update of the
    parameters are left out.
    """
    classes, n = facts["classes"], facts["samples"] * facts["epochs"] * facts["cohort"] / facts["parties"]
    if facts["model"] == "cnn":
        first, later = 24 * 24 * 25 * 10, 8 * 8 * 250 * 20 + 320 * 20 + 20 * classes
        return 2.0 * n * (2 * first + 3 * later)
    if facts["model"] == "lstm":
        return 2.0 * n * 3 * (facts["shape"][0] * 400 * (8 + 100 + 100 + 100) + 100 * classes)
    features = 1
    for size in facts["shape"]:
        features *= size
    return 2.0 * n * 2 * features * classes


def floors(record: dict[str, Any]) -> dict[str, float]:
    """A lower limit of the seconds per round on one core: that of the C kernel, or else of sgemm."""
    limits = {}
    for name, facts in record["workloads"].items():
        kernel = [r for r in _good(record, name) if r["name"] == "C kernel"]
        sgemm = flops(facts) / (1e9 * record["ceilings"]["sgemm_gflops"])
        limits[name] = kernel[0]["round"] if kernel else sgemm
    return limits


def markdown(record: dict[str, Any], image: str) -> str:
    """All tables of the page: the measurements of a machine, and the name of their picture."""
    works = list(record["workloads"])
    machine, ceilings = record["machine"], record["ceilings"]
    lines = [f"`{record['command']}`, on {machine['processor']}, {machine['cores']} cores, "
             f"{machine['memory_gib']} GiB; one core: {ceilings['sgemm_gflops']} GFLOP/s in sgemm, "
             f"{ceilings['triad_gb_per_s']} GB/s in a triad.", ""]
    lines += [f"* **{name}**: {facts['title']}; {facts['parties']} parties, {facts['cohort']} a round, "
              f"{facts['epochs']} epoch{'s' if facts['epochs'] > 1 else ''} of batches of {facts['batch']}, learning "
              f"rate {facts['learning_rate']}, mu = {facts['mu']:g}; {facts['rounds']} rounds, the second half timed"
              for name, facts in record["workloads"].items()]
    lines += ["", f"![Seconds per round]({image})", "", "## Milliseconds per round", "",
              f"Median of {record['repeats']} runs taken in alternation; in brackets CPU milliseconds.", ""]
    lines += _grid(record, works, lambda r: f"{_ms(r['round'])} ({_ms(r['round_cpu'])})")
    lines += ["", "## How far ahead", "", "| work | fastest peer | ours | ahead | one core against the floor |",
              "|---|---|---|---|---|"]
    lines += [_ahead(record, name) for name in works]
    lines += ["", "The floor is a C kernel written by hand for W1 and W2, and one core's sgemm for W3 and W4.", "",
              "## Peak memory, MiB", ""]
    lines += _grid(record, works, lambda r: f"{r['peak_mib']:.0f}")
    lines += ["", "## Start-up: seconds to import, and from the data to the end of the first round", "",
              "In brackets the first run's first round, before compiled programs were stored.", ""]
    lines += _grid(record, works, lambda r: f"{r['import']:.1f} + {r['first_round']:.2f} ({r['first_round_cold']:.2f})")
    lines += ["", "## The last models: training loss, test accuracy", "",
              "The lowest and the highest of the runs: all have the same samples, cohorts and first model, but "
              "different minibatches. FedJAX fills its batches across the ends of epochs, and therefore makes fewer "
              "steps where parties are small.", ""]
    lines += _grid(record, works, lambda r: f"{_span(r['train_loss'])}, {_span(r['test_accuracy'])}")
    replaced = [f"* {line}" for lines_of_environment in record.get("replaced_pins", {}).values()
                for line in lines_of_environment]
    if replaced:
        lines += ["", "## Versions", "", *replaced]
    failed = [f"* {r['name']}, {r['setting']} on {r['workload']}: {r['error'].strip().splitlines()[-1]}"
              for r in record["rows"] if "error" in r]
    absent = [f"* {label}: {reason}" for label, reason in record.get("skipped", {}).items()]
    if failed or absent:
        lines += ["", "## Not measured", "", *failed, *absent]
    return "\n".join(lines)


def _grid(record: dict[str, Any], works: list[str], cell: Any) -> list[str]:
    rows = {(r["name"], r["setting"], r["workload"]): r for r in record["rows"] if "error" not in r}
    contestants = list(dict.fromkeys((r["name"], r["setting"]) for r in record["rows"]))
    lines = [f"| | {' | '.join(works)} |", "|---" * (len(works) + 1) + "|"]
    for name, setting in contestants:
        cells = [cell(rows[name, setting, w]) if (name, setting, w) in rows else "" for w in works]
        if any(cells):
            lines.append(f"| {name}, {setting} | {' | '.join(cells)} |")
    return lines


def _ahead(record: dict[str, Any], name: str) -> str:
    """The row of a workload: the fastest peer, ours, their ratio, and the distance to the limit of the machine."""
    rows, facts = _good(record, name), record["workloads"][name]
    peers, ours = [r for r in rows if r["name"] in _PEERS], [r for r in rows if r["name"] == "ours"]
    if not peers or not ours:
        return f"| {name} | | | | |"
    peer, best = min(peers, key=lambda r: r["round"]), min(ours, key=lambda r: r["round"])
    single = next((r for r in ours if r["setting"] == "1 core"), best)
    floor = floors(record)[name]
    rate = 1e-9 * flops(facts) / single["round"]
    against = (f"{single['round'] / floor:.1f} times the C kernel" if any(r["name"] == "C kernel" for r in rows) else
               f"{rate:.0f} GFLOP/s, {floor / single['round']:.0%} of sgemm")
    return (f"| {name} | {peer['name']}, {peer['setting']}: {_ms(peer['round'])} ms | {best['setting']}: "
            f"{_ms(best['round'])} ms | **{peer['round'] / best['round']:.1f} times** | {against} |")


def picture(record: dict[str, Any], path: Path) -> None:
    """Seconds per round, each contestant's best setting, and the floors."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from resolvent.simulator.record.plots import COLOURS, style

    works = list(record["workloads"])
    names = [n for n in ("ours", *_PEERS) if any(r["name"] == n for w in works for r in _good(record, w))]
    marks = dict(zip(("ours", *_PEERS), "osD^v", strict=True))
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
        figure = Figure(figsize=(7.2, 0.8 + 0.75 * len(works)), layout="constrained")
        axes = figure.add_subplot()
        for i, name in enumerate(names):
            best = {w: min((r["round"] for r in _good(record, w) if r["name"] == name), default=None) for w in works}
            known = [(seconds, at) for at, w in enumerate(works) if (seconds := best[w]) is not None]
            axes.plot([s for s, _ in known], [at for _, at in known], marks[name], color=COLOURS[i], markersize=8,
                      label=name, linestyle="none")
        for at, floor in enumerate(floors(record).values()):
            axes.plot([floor, floor], [at - 0.32, at + 0.32], color="0.3", linewidth=2,
                      label="one core's floor" if not at else None)
        axes.set_xscale("log")
        axes.set_yticks(range(len(works)), [f"{w}  {record['workloads'][w]['title'].replace(', ', chr(10), 1)}"
                                            for w in works])
        axes.set_ylim(len(works) - 0.5, -0.5)
        axes.set_xlabel("seconds per round")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=6)
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": "Seconds per round"})


def _good(record: dict[str, Any], workload: str) -> list[dict[str, Any]]:
    return [r for r in record["rows"] if r["workload"] == workload and "error" not in r]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def _span(values: list[float]) -> str:
    low, high = (f"{v:.3f}" for v in values)
    return low if low == high else f"{low} to {high}"

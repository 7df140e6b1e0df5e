"""The tables and the picture of the measurements in a JSON file."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

__all__ = ["markdown", "picture", "report"]

_TITLES = {
    "mlp": "MLP 784-200-10 (Flax)", "logistic": "logistic regression, 5,000 features (built-in)",
    "cnn": "CNN of McMahan et al. (Equinox)", "resnet": "ResNet-20, group normalisation (Equinox)",
    "series": "1-D convolutions, 9 x 128 (Equinox)", "gru": "GRU, 80 characters (Equinox)",
    "lstm": "LSTM, 80 characters (Equinox)", "transformer": "transformer, 2 layers, 64 tokens (Equinox)",
    "language": "language model, 2 layers, 64 tokens of 1,000 (Equinox)",
    "bag": "bag of embeddings, 20,000 x 64 (Flax)"}
_MAX_LOSS_DIFFERENCE = 0.15


def report(source: Path) -> None:
    """Draw the picture next to the JSON file; ``benchmarks/figures.py`` writes the tables."""
    picture(json.loads(source.read_text()), source.with_suffix(".svg"))
    print(f"written to {source.with_suffix('.svg')}")


def markdown(record: dict[str, Any], image: str) -> str:
    """The tables of the page, in Markdown."""
    machine, limits = record["machine"], record["ceilings"]
    lines = [
        f"`{record['command']}`, on {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; one "
        f"core: {limits['sgemm_gflops']} GFLOP/s in sgemm. Medians of {record['repeats']} runs in alternation; "
        "one run with nothing replaced.", "",
        f"A round of FedAvg: {record['parties']} parties, one epoch each in minibatches of 20. Microseconds per "
        "training sample, CPU time, and wall time in parentheses. PyTorch is a plain loop, with one thread and with "
        "two.", "", f"![Microseconds per sample]({image})", ""]
    for cores in sorted({row["cores"] for row in record["rows"]}):
        lines += _table(record, cores)
    different = [f"* {_TITLES[name]}: {ours['loss']:.3f} and {peer['loss']:.3f}"
                 for name, ours, peer in _pairs(record, 1)
                 if abs(ours["loss"] - peer["loss"]) > _MAX_LOSS_DIFFERENCE * max(ours["loss"], peer["loss"])]
    lines += ["", f"Losses after {2 * record['rounds']} rounds, from the same first parameters and with "
              f"minibatches in other orders, differ by at most {_MAX_LOSS_DIFFERENCE:.0%}"
              + ("." if not different else ", except:")]
    first = [abs(ours["first_loss"] - peer["first_loss"]) for _, ours, peer in _pairs(record, 1)
             if "first_loss" in ours and "first_loss" in peer]
    if first:
        different += ["", f"Losses before the first round differ by at most {max(first):.1g}."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, *different]))


def _table(record: dict[str, Any], cores: int) -> list[str]:
    lines = [f"## {cores} core{'s' if cores > 1 else ''}", "",
             "| model | ours | nothing replaced | PyTorch | times as fast as PyTorch | share of sgemm | compile, s | "
             "peak MiB, ours and PyTorch | loss, ours and PyTorch |", "|---" * 9 + "|"]
    ratios = {}
    for name, ours, peer in _pairs(record, cores):
        plain = next((row for row in record["rows"] if row["model"] == name and row["contestant"].startswith("ours,")
                      and row["cores"] == cores), None)
        # Two cores: their wall time is what counts. One core: the CPU time, which other programs disturb less.
        clock = "us_cpu" if cores == 1 else "us"
        ratios[name] = peer[clock] / ours[clock]
        share = ours["flops"] / (1e3 * ours[clock] * record["ceilings"]["sgemm_gflops"] * cores)
        lines.append(f"| {_TITLES[name]} | {_time(ours)} | {_time(plain) if plain else ''} | {_time(peer)} | "
                     f"{ratios[name]:.2f} | {share:.0%} | {ours['compile_seconds']:.1f} | "
                     f"{ours['peak_mib']:.0f}, {peer['peak_mib']:.0f} | {ours['loss']:.3f}, {peer['loss']:.3f} |")
    if ratios:
        slowest = min(ratios, key=lambda name: ratios[name])
        lines += ["", f"Geometric mean: {statistics.geometric_mean(ratios.values()):.2f} times as fast as PyTorch; the "
                  f"lowest: {ratios[slowest]:.2f}, {_TITLES[slowest]}.", ""]
    return lines


def _pairs(record: dict[str, Any], cores: int) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Model, our row and PyTorch's."""
    rows = {(row["model"], row["contestant"]): row for row in record["rows"] if row["cores"] == cores}
    return [(name, rows[name, "ours"], rows[name, "PyTorch"]) for name in _TITLES
            if (name, "ours") in rows and (name, "PyTorch") in rows]


def _time(row: dict[str, Any]) -> str:
    cpu, wall = (f"{us:.3g}" if us < 1000 else f"{us:,.0f}" for us in (row["us_cpu"], row["us"]))
    return f"{cpu} ({wall})"


def picture(record: dict[str, Any], path: Path) -> None:
    """Microseconds per sample of all contestants on one core."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    from resolvent.simulator.record.plots import COLOURS, style

    pairs = _pairs(record, 1)
    with mpl.rc_context({**style, "svg.hashsalt": "resolvent"}):
        figure, axes = plt.subplots(figsize=(8, 0.5 * len(pairs) + 1.2), layout="constrained")
        for i, contestant in enumerate(("ours", "PyTorch", "ours, nothing replaced")):
            rows = {row["model"]: row["us_cpu"] for row in record["rows"]
                    if row["contestant"] == contestant and row["cores"] == 1}
            known = [(rows[name], at) for at, (name, *_) in enumerate(pairs) if name in rows]
            axes.plot([us for us, _ in known], [at for _, at in known], "ods"[i], color=COLOURS[i], markersize=8,
                      label=contestant, linestyle="none")
        axes.set_xscale("log")
        axes.set_yticks(range(len(pairs)), [_TITLES[name] for name, *_ in pairs])
        axes.set_ylim(len(pairs) - 0.5, -0.5)
        axes.set_xlabel("CPU time per sample on one core, in microseconds", loc="right")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside upper center", ncols=3)
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": "Microseconds per sample"})

"""Stylised facts of synthetic daily returns against those of the real ones on which the augmenters were fitted.

    python -m experiments.portfolio.stylised_facts PRICES.csv.gz [--parties 10] [--out FILE]

Each party has 9 random stocks (seed 0). Its augmenter is fitted to the closing prices up to 2018-12-31 on the days on
which all of its stocks were traded, and draws 40 years. The facts are means over the parties; the real ones are those
of the same stocks and days. The GAN without calibration has the moments of its generator.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ.setdefault("PJRT_NPROC", "1")  # as the command line does: more threads only wait during steps this small

import numpy as np

from experiments import portfolio
from experiments.portfolio.augmenters.generation import log_returns

AUGMENTERS = {"GBM": portfolio.GBM(), "VMM": portfolio.VMM(), "GAN": portfolio.GAN(),
              "GAN, not calibrated": portfolio.GAN(calibrate=False)}


def main() -> None:
    """Measure, print a table, and write the file that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("prices", help="a CSV file of closing prices")
    parser.add_argument("--parties", type=int, default=10, help="number of parties")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    options = parser.parse_args()
    data = portfolio.draw_markets(portfolio.read_prices(options.prices), parties=options.parties,
                                     train_until="2018-12-31")
    closes = data.training_prices.closes
    rows, seconds = {"real": mean_facts([np.asarray(log_returns(closes, u))[None] for u in data.universes])}, {}
    for name, augmenter in AUGMENTERS.items():
        begin = time.process_time()
        years = portfolio.generate([augmenter], closes, data.universes)
        seconds[name] = round(time.process_time() - begin, 1)
        rows[name] = mean_facts(list(np.log(years)))
    names = list(rows["real"])
    print("|", " | ".join(["", *names]), "|")
    for name, row in rows.items():
        print("|", " | ".join([name, *(f"{row[key]:.3g}" for key in names)]), "|")
    print("CPU seconds:", seconds)
    if options.out:
        command = (f"python -m experiments.portfolio.stylised_facts {Path(options.prices).name} "
                   f"--parties {options.parties}")
        lines = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        text = json.dumps({"command": command, "cpu_seconds": seconds}, indent=1)
        options.out.write_text(f'{text[:-2]},\n "facts": {{\n  {lines}\n }}\n}}\n')


def mean_facts(returns: list[np.ndarray]) -> dict[str, float]:
    """The stylised facts of each party's returns, as means over the parties."""
    facts = [stylised_facts(of_party) for of_party in returns]
    return {name: float(f"{np.mean([f[name] for f in facts]):.4g}") for name in facts[0]}


def stylised_facts(returns: np.ndarray) -> dict[str, float]:
    """Properties of daily logarithmic returns [series, days, assets], after Cont, Quantitative Finance, 2001.

    Annual mean and standard deviation, kurtosis, autocorrelations of the returns and of their absolute values (mean
    over lags of 1 to 10 days), and the mean correlation of two assets; moments are over all series and days.
    """
    deviation = returns.std(axis=(0, 1))
    standard = (returns - returns.mean(axis=(0, 1))) / deviation
    correlations = np.corrcoef(returns.reshape(-1, returns.shape[2]), rowvar=False)
    return {"mean": 252 * returns.mean(), "volatility": np.sqrt(252) * deviation.mean(),
            "kurtosis": (standard**4).mean(), "memory": autocorrelation(returns),
            "volatility_memory": autocorrelation(np.abs(returns)),
            "correlation": correlations[~np.eye(len(correlations), dtype=bool)].mean()}


def autocorrelation(values: np.ndarray) -> float:
    """Mean over assets and lags of 1 to 10 days; products of successive days are within a series."""
    centred = values - values.mean(axis=(0, 1))
    variance = (centred**2).mean(axis=(0, 1))
    return float(np.mean([(centred[:, lag:] * centred[:, :-lag]).mean(axis=(0, 1)) / variance
                          for lag in range(1, 11)]))


if __name__ == "__main__":
    main()

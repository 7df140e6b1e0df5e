"""The table of the pages on predictions, metrics and tuning."""

import numpy as np
import pandas as pd


def visits(seed, rows):
    """Six sites with a number, a category and an outcome; one pressure in 20 is missing."""
    rng = np.random.default_rng(seed)
    sites = np.array(["Bochum", "Essen", "Fulda", "Gera", "Hagen", "Ulm"])
    frame = pd.DataFrame({"hospital": sites[np.arange(rows) % 6],
                          "age": rng.normal(60, 12, rows), "pressure": rng.normal(130, 15, rows),
                          "ward": rng.choice(["north", "south"], rows)})
    frame["outcome"] = np.where(frame["age"] / 12 + frame["pressure"] / 15 > 13.7, "ill", "well")
    frame.loc[rng.random(rows) < 0.05, "pressure"] = np.nan
    return frame

"""A clean table, and tables with one planted fault each."""

import numpy as np
import pandas as pd

from resolvent.tables.table_options import TableOptions

SITES = ("Aachen", "Bonn", "Celle", "Düren", "Essen")
SETTINGS = TableOptions("site", "ill", test=0.4)


def clean(rows=800, seed=0):
    """Numbers, true/false and text at five sites, and a label that depends on them."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "site": rng.choice(SITES, rows), "age": rng.normal(60, 12, rows), "weight": rng.normal(75, 14, rows),
        "crp": rng.lognormal(1, 1, rows), "ward": rng.choice(["north", "south", "east"], rows),
        "smokes": rng.random(rows) < 0.3})
    risk = frame["age"] / 12 + frame["weight"] / 14 + rng.normal(0, 1, rows)
    return frame.assign(ill=np.where(risk > 10.3, "yes", "no"))


def at(frame, site, column, change):
    """The table with a changed column at a site."""
    return frame.assign(**{column: frame[column].where(frame["site"] != site, change(frame[column]))})

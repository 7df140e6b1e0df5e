"""The tables of three sites, with columns of each kind, and the encoding on which they agree."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd

from resolvent.data.files.plain_values import read_plain
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.schema import agree
from resolvent.federation.protocol.table_reports import TableReport
from resolvent.federation.site.table import SiteTable
from resolvent.tables.table_options import TableOptions

SITES = ("aachen", "berlin", "celle")
SETTINGS = TableOptions("site", "ill", test=0.3, validation=0.1, seed=4)


def pooled_table(seed=0):
    rng = np.random.default_rng(seed)
    n = 90
    return pd.DataFrame({
        "site": np.repeat(SITES, [20, 30, 40]),
        "age": rng.normal(60, 10, n) + np.repeat([0.0, 5, -5], [20, 30, 40]),
        "pulse": rng.integers(50, 90, n),
        "constant": 0.1,
        "smoker": rng.random(n) < 0.4,
        "ward": rng.choice(["east", "north", "west"], n),
        "ill": rng.choice(["no", "yes"], n),
    })


def site_tables(frame, settings=SETTINGS, sites=SITES, min_cell=1):
    return {site: SiteTable(frame[frame["site"] == site].reset_index(drop=True), settings, site, number,
                            replace(NO_LIMITS, min_cell=min_cell))
            for number, site in enumerate(sites)}


def agreed(tables, settings=SETTINGS):
    reports = {site: read_plain(TableReport, json.loads(json.dumps(table.report().plain())), site)
               for site, table in tables.items()}
    return agree(reports, settings)

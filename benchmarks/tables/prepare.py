"""Write the six tables of this benchmark as CSV files, from the packages that ship them.

    python prepare.py FOLDER

Run it with the Python of the peers (``requirements.txt``). Nothing is downloaded. Where a table names the place of each
row, the place is its site; ``SOURCES`` says what was changed, and ``PARTITIONS`` how the other tables are divided.
"""

import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn import datasets

SOURCES = {
    "lung": "lifelines: North Central Cancer Treatment Group. One row has no institution and is left out, and so are "
            "42 patients who were observed for less than a year and were alive then. The label is death within a year.",
    "actg175": "lifelines: AIDS Clinical Trials Group, study 175. The site is the patient number without its last "
               "four digits; the table does not explain them. Sites with fewer than 20 patients form one site.",
    "randhie": "statsmodels: RAND Health Insurance Experiment, the first year of each person. The label is any medical "
               "expense in the year; columns that are known only after the year are left out.",
    "penguins": "palmerpenguins: three islands near Palmer Station. 11 birds of unknown sex are left out.",
    "diabetes": "scikit-learn: 442 patients. The table has no sites: divided at random.",
    "wine": "scikit-learn: 178 wines of three cultivars. The table has no sites: divided at random.",
}
PARTITIONS = {"diabetes": [150, 100, 80, 52, 35, 25], "wine": [60, 45, 35, 22, 16]}  # rows of each site, seed 0
_MIN_ROWS = 20
_AFTER_THE_YEAR = ["time", "outpdol", "drugdol", "suppdol", "mentdol", "inpdol", "meddol", "totadm", "inpmis",
                   "mentvis", "mdvis", "notmdvis", "lnmeddol"]
_IMPUTED = ["xghindx"]  # ghindx with imputed values


def main() -> None:
    """Write the tables into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in {"lung": lung, "actg175": actg175, "randhie": randhie, "penguins": penguins,
                       "diabetes": diabetes, "wine": wine}.items():
        table = make()
        table.to_csv(folder / f"{name}.csv", index=False)
        print(f"{name}: {len(table)} rows, {table.shape[1]} columns, {table['site'].nunique()} sites")


def lung() -> pd.DataFrame:
    """Patients with advanced lung cancer, and the institution that treated them."""
    table = pd.read_csv(files("lifelines") / "datasets" / "lung.csv")
    has_died, days = table["status"] == 1, table["time"]
    table["death within a year"] = np.where(has_died & (days <= 365), "yes", "no")
    table = table[table["inst"].notna() & (has_died | (days >= 365))].astype({"inst": int})
    return table.rename(columns={"inst": "site"}).drop(columns=["time", "status"])


def actg175() -> pd.DataFrame:
    """Patients with HIV; ``cens`` says whether the disease progressed, or the patient died."""
    table = pd.read_csv(files("lifelines") / "datasets" / "ACTG175.csv", index_col=0)
    site = (table["pidnum"] // 10_000).astype(str)
    is_small = site.map(site.value_counts()) < _MIN_ROWS
    table.insert(0, "site", site.where(~is_small, "others"))
    table["progression"] = np.where(table["cens"] == 1, "yes", "no")
    return table.drop(columns=["pidnum", "cens", "days", "cd420", "cd496", "r", "cd820", "offtrt"])


def randhie() -> pd.DataFrame:
    """Insured persons at six sites in the United States, with the plan that was drawn for each family."""
    table = pd.read_csv(files("statsmodels") / "datasets" / "randhie" / "src" / "randhie.csv")
    table["any expense"] = np.where(table["binexp"] == 1, "yes", "no")
    return table[table["year"] == 1].drop(columns=["year", "zper", "binexp", *_AFTER_THE_YEAR, *_IMPUTED])


def penguins() -> pd.DataFrame:
    """Penguins of three species; the label is the sex."""
    table = pd.read_csv(files("palmerpenguins") / "data" / "penguins.csv")
    return table[table["sex"].notna()].rename(columns={"island": "site"})


def diabetes() -> pd.DataFrame:
    """Patients with diabetes; the target is the progression after a year."""
    return with_sites("diabetes", datasets.load_diabetes(as_frame=True, scaled=False).frame)


def wine() -> pd.DataFrame:
    """Wines by their chemical analysis; the target is the cultivar."""
    table = datasets.load_wine(as_frame=True)
    return with_sites("wine", table.frame.assign(target=table.target_names[table.target]))


def with_sites(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``site``: rows drawn at random, in the sizes of ``PARTITIONS``."""
    sizes = PARTITIONS[name]
    sites = np.repeat([chr(ord("A") + k) for k in range(len(sizes))], sizes)
    table.insert(0, "site", np.random.default_rng(0).permutation(sites))
    return table


if __name__ == "__main__":
    main()

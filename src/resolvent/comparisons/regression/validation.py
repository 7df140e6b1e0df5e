"""How well a regression predicts new rows whose labels are known: calibration and discrimination at each site."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.regression.agreement import level_names
from resolvent.comparisons.regression.formula import Response, parse_formula
from resolvent.comparisons.regression.label_numbers import numbers_of
from resolvent.comparisons.regression.predictions import Predictor
from resolvent.comparisons.regression.regress import regress
from resolvent.comparisons.regression.rows import check_named, read_columns
from resolvent.comparisons.regression.wording import number
from resolvent.comparisons.text_tables import plain_table
from resolvent.errors import InputError, quote
from resolvent.tables.cells import CellRules, read_cells, with_unique_names
from resolvent.tables.owners import read_owners
from resolvent.tables.text_formats import TextFormat

if TYPE_CHECKING:
    import pandas as pd

ALL = "all"
_PREDICTOR, _SITE, _MEAN = "linear predictor", "site of the row", "predicted mean"
_BLOCK = 1000  # rows whose pairs are compared at a time


def validate(predictor: Predictor, frame: "pd.DataFrame", *, party: str | None = None,
             smallest: int = 5) -> "pd.DataFrame":
    r"""Calibration and discrimination of a regression on rows with labels, at each site and together.

    Calibration is the regression of the same family of the label on the linear predictor, a + b (x'beta + offset): of a
    model that fits, a = 0 and b = 1; with 0 < b < 1 its predictions are too extreme. A Cox model has no intercept.
    Discrimination is the concordance: the share of pairs of rows of one site with different labels (of which one had
    the event while the other was at risk) in whose order the linear predictor agrees; equal predictors count a half. Of
    two classes it is the area under the ROC curve, of times Harrell's C. Its error is the infinitesimal jackknife's.

    Sites with fewer than ``smallest`` rows, events, or rows of a class have a note and no numbers, and are in no total.

    Source: Cox, *Two further applications of a model for binary regression*, 1958; Harrell, Lee, Mark, *Multivariable
    prognostic models*, 1996.

    Args:
        predictor: of a regression, such as ``fit.predictor``.
        frame: rows with the columns of the formula, the label included.
        party: the column that names the site; None: the rows are of one.
        smallest: the smallest number of rows that is told.

    Returns:
        A row for each site, and for all together: ``rows``, ``observed`` and ``expected`` mean label, ``intercept``,
        ``slope`` and ``concordance`` with their standard errors, and ``note``.

    Raises:
        InputError: a column is missing, the label has several classes without an order, or no site has enough rows.

    Example:
        >>> rv.statistics.validate(fit.predictor, later, party="hospital")["slope"]  # doctest: +SKIP
    """
    import pandas as pd

    model, response = predictor.model, parse_formula(predictor.model.formula).response
    if model.family is not None and model.family.predictors > 1:
        raise InputError("several classes without an order have several linear predictors: evaluate a binomial "
                         "regression of each class, or an ordinal one")
    frame = with_unique_names(frame)
    for name in [*response.columns, *([] if party is None else [party])]:
        check_named(frame, name, "of the label or the site")
    rows = _label(predictor, frame, response)
    rows[_SITE] = ALL if party is None else read_owners(
        read_cells(frame, [party], CellRules(text=frozenset([party]))), party)
    rows[_PREDICTOR] = predictor.predict(frame, "link")["prediction"]
    has_mean = model.family_name not in ("cox", "ordinal") and not model.keeps_intercepts
    rows[_MEAN] = predictor.predict(frame)["prediction"] if has_mean else 0.0
    rows = rows.dropna().reset_index(drop=True)
    notes = {str(site): _too_few(predictor, of_site, response, smallest) for site, of_site in rows.groupby(_SITE)}
    told = rows[rows[_SITE].map(notes) == ""]
    if told.empty:
        raise InputError(f"no site has enough rows: {next(iter(notes.values()), 'no row has all values')}")
    names = ", ".join(f"`{name}`" for name in response.columns)
    left = names if response.event is None else f"Surv({names})"
    fit = regress(told, f"{left} ~ `{_PREDICTOR}`", party=_SITE, family=model.family_name,  # type: ignore[arg-type]
                  ties=model.ties)
    tables, pairs = {ALL: fit.table}, {str(site): _pairs(of_site, response) for site, of_site in told.groupby(_SITE)}
    if len(pairs) > 1:
        of_sites = fit.heterogeneity().site_table
        tables |= {str(site): of_sites.loc[site] for site in of_sites.index.unique(level=0)}
    elif ALL not in pairs:
        tables |= dict.fromkeys(pairs, fit.table)
    pairs[ALL] = np.concatenate([*pairs.values()], axis=1)
    records: dict[str, dict[str, float | str]] = {}
    for site in dict.fromkeys([*notes, ALL]):
        if notes.get(site):
            records[site] = {"note": notes[site]}
            continue
        numbers, (agree, compared) = tables[site].to_dict(), pairs[site]
        of_site = told if site == ALL else told[told[_SITE] == site]
        means = {"observed": response.label, "expected": _MEAN} if has_mean else {}
        known = {"intercept": "Intercept", "slope": _PREDICTOR} if has_mean else {"slope": _PREDICTOR}
        concordance = float(agree.sum() / compared.sum())
        error = float(np.sqrt(np.sum((agree - concordance * compared)**2)) / (compared.sum() / 2))
        records[site] = {"rows": len(of_site), **{kind: float(of_site[name].mean()) for kind, name in means.items()},
                         **{f"{kind}{suffix}": float(numbers[column][name]) for kind, name in known.items()
                            for suffix, column in (("", "estimate"), (" error", "standard error"))},
                         "concordance": concordance, "concordance error": error, "note": ""}
    return pd.DataFrame.from_dict(records, orient="index").loc[[*records]].rename_axis("site")


def validate_file(folder: Path, rows: str, text: TextFormat, *, party: str | None, smallest: int) -> "pd.DataFrame":
    """``validate`` for the rows of a file and the regression of a folder that ``Regression.save`` wrote."""
    predictor = Predictor.load(folder)
    wanted = [*predictor.columns, *parse_formula(predictor.model.formula).response.columns]
    wanted += [party] if party is not None else []
    cells = predictor.model.cells | CellRules(text=frozenset(wanted[-1:] if party is not None else []))
    return validate(predictor, read_columns(rows, wanted, text, cells), party=party, smallest=smallest)


def in_words(table: "pd.DataFrame") -> str:
    """The table as text; standard errors stand between parentheses."""
    kinds = [name for name in ("observed", "expected", "intercept", "slope", "concordance") if name in table]
    lines = []
    for site, line in table.iterrows():
        if line["note"]:
            lines.append([str(site), "-", *["-"] * len(kinds), str(line["note"])])
            continue
        shown = [number(line[kind]) + (f" ({line[f'{kind} error']:.2g})" if f"{kind} error" in table else "")
                 for kind in kinds]
        lines.append([str(site), f"{line['rows']:.0f}", *shown, ""])
    return plain_table(["site", "rows", *kinds, ""], lines, "text")


def _label(predictor: Predictor, frame: "pd.DataFrame", response: Response) -> "pd.DataFrame":
    """The columns of the label as numbers, missing where a cell is."""
    import pandas as pd

    model = predictor.model
    cells = read_cells(frame, response.columns, model.cells)
    columns = {}
    for name in response.columns:
        known = cells[name].dropna()
        if name == response.event:
            names = level_names(known)
            if names.nunique() > 2:
                raise InputError(f"{quote(name)} has {names.nunique()} values, and says whether the event occurred")
            columns[name] = (names == model.event).astype(float)
        elif model.classes:
            names, codes = level_names(known), {level: float(k) for k, level in enumerate(model.classes)}
            if unknown := sorted({*names} - {*codes}):
                raise InputError(f"{quote(name)} has {quote(unknown[0])}, which is no class of the regression: it has "
                                 f"{', '.join(map(quote, codes))}")
            columns[name] = names.map(codes)
        else:
            columns[name] = pd.Series(numbers_of(known, "any"), index=known.index)
    return pd.DataFrame(columns, index=frame.index)


def _too_few(predictor: Predictor, rows: "pd.DataFrame", response: Response, smallest: int) -> str:
    """Why nothing about these rows is told; empty if they are enough."""
    kinds = rows[response.columns[-1]] if response.event is not None or predictor.model.classes else None
    needs_two = bool(predictor.model.classes)
    counts = {"rows": len(rows)} if kinds is None else {
        f"rows of each kind of {quote(response.columns[-1])}": int(kinds.value_counts().min()) if not needs_two
        or kinds.nunique() > 1 else 0}
    if response.event is not None:
        counts["events"] = int(rows[response.event].sum())
    return next((f"fewer than {smallest} {kind}" for kind, count in counts.items() if count < smallest), "")


def _pairs(rows: "pd.DataFrame", response: Response) -> NDArray[np.float64]:
    """[2, rows] in how many pairs with each row the predictor agrees with the label, and how many pairs there are."""
    label, risk = rows[response.label].to_numpy(), rows[_PREDICTOR].to_numpy()
    totals = np.zeros((2, len(rows)))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        if response.event is None:
            is_higher = label[part, None] > label
        else:  # the row of the block has the event while the other is at risk
            event = rows[response.event].to_numpy() > 0
            entry = np.full(len(rows), -np.inf) if response.entry is None else rows[response.entry].to_numpy()
            is_higher = (event[part, None] & (entry < label[part, None])
                         & ((label[part, None] < label) | ((label[part, None] == label) & ~event)))
        agreement = (risk[part, None] > risk) + 0.5 * (risk[part, None] == risk)
        for k, pairs in enumerate((is_higher * agreement, is_higher)):
            totals[k, part] += pairs.sum(axis=1)
            totals[k] += pairs.sum(axis=0)
    return totals

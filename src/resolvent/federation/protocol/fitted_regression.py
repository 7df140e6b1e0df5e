"""The fit of a federated regression as files: what the server writes, and the lead reads."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.random_intercepts import random_fit
from resolvent.comparisons.regression.regress import pooled_fits, regression_of
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.rows import rows_without_values
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.comparisons.regression.site_fits import join_site_fits
from resolvent.data.files.atomic_files import write_atomically, write_text
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.federation.protocol.regression import fits_of
from resolvent.math import newton
from resolvent.math.newton import NewtonState
from resolvent.regression.regression_fits import FitReport

FIT_FILE = "fit.json"
_NUMBERS_FILE = "fit.npz"


class FittedPart(NamedTuple):
    """The outcome of the rounds of a fit.

    Attributes:
        search: the last state of Newton's method.
        report: the sums at the estimates.
    """

    search: NewtonState
    report: FitReport


@dataclass(frozen=True)
class FittedRegression:
    """The outcome of the rounds.

    Attributes:
        model: what was fitted.
        fits: those of ``fits_of``, for each completed table.
        bytes_down: bytes from the server to the sites in the rounds.
        bytes_up: bytes from the sites to the server.
    """

    model: RegressionModel
    settings: RegressionSettings
    fits: tuple[FittedPart, ...]
    bytes_down: int
    bytes_up: int

    @property
    def result(self) -> Regression:
        """The fit as statisticians read it."""
        if self.settings.imputations is not None:
            return pooled_fits([*map(self._regression, self.fits)])
        common, *others = self.fits
        fit = self._regression(common)
        for search, report in others:
            fit = replace(fit, random=random_fit(fit, search, report.means))
        return fit

    def _regression(self, fit: FittedPart) -> Regression:
        local = fit.report.local
        sites = None if local is None else join_site_fits(self.model, np.asarray(local[0]), local[1])
        return regression_of(self.model, self.settings, fit.search, fit.report.means, site_fits=sites)


def write_fit(folder: Path, fit: FittedRegression) -> None:
    """Write a fit for the lead: the estimates and the sums at them, and nothing of the rounds' sums."""
    folder.mkdir(parents=True, exist_ok=True)
    zero = jnp.zeros(())
    told = [(search._replace(direction=0 * search.direction, slope=zero, value=zero, size=zero, step=zero), report)
            for search, report in fit.fits]
    leaves = {f"{i:06d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(told))}

    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, **leaves)  # type: ignore[arg-type]

    write_atomically(folder / _NUMBERS_FILE, write)
    write_text(folder / FIT_FILE, json.dumps({"model": asdict(fit.model), "settings": asdict(fit.settings),
                                              "bytes": [fit.bytes_down, fit.bytes_up]}, indent=1))


def read_fit(folder: Path) -> FittedRegression:
    """The fit that ``write_fit`` wrote."""
    try:
        content: dict[str, Any] = json.loads((folder / FIT_FILE).read_text("utf-8"))
        model = read_plain(RegressionModel, content["model"], FIT_FILE)
        settings = RegressionSettings(**content["settings"])
        with jax.enable_x64(True):
            fits = fits_of(rows_without_values(model), settings)
            like = jax.eval_shape(lambda: [FittedPart(
                newton.start(fit.problem.start), fit.sums.init(fit.problem.start, jnp.ones(len(model.sites))))
                for fit in fits * (settings.imputations or 1)])
        with np.load(folder / _NUMBERS_FILE) as file:
            leaves: Sequence[Any] = [file[name] for name in sorted(file.files)]
        found = jax.tree.unflatten(jax.tree.structure(like), leaves)
        if any(leaf.shape != expected.shape for leaf, expected in zip(leaves, jax.tree.leaves(like), strict=True)):
            raise ValueError("an array has another shape")
        return FittedRegression(model, settings, tuple(found), *content["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} has no fit of a regression, or it is damaged ({error}): run the command again with "
                         "another --out") from error

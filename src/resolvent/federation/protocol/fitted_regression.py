"""The fit of a federated regression as files: what the server writes, and the lead reads."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.comparisons.regression.model import RegressionModel
from resolvent.comparisons.regression.regress import regression_of
from resolvent.comparisons.regression.regression import Regression
from resolvent.comparisons.regression.settings import RegressionSettings
from resolvent.comparisons.regression.site_fits import join_site_fits
from resolvent.data.files.atomic_files import write_atomically, write_text
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError
from resolvent.federation.protocol.regression import sends_own_fits
from resolvent.math import newton
from resolvent.math.newton import NewtonState
from resolvent.regression.regression_fits import FitReport, SumsOfFit

FIT_FILE = "fit.json"
_NUMBERS_FILE = "fit.npz"


@dataclass(frozen=True)
class FittedRegression:
    """The outcome of the rounds.

    Attributes:
        model: what was fitted.
        search: the last state of Newton's method.
        report: the sums at the estimates.
        bytes_down: bytes from the server to the sites in the rounds.
        bytes_up: bytes from the sites to the server.
    """

    model: RegressionModel
    settings: RegressionSettings
    search: NewtonState
    report: FitReport
    bytes_down: int
    bytes_up: int

    @property
    def result(self) -> Regression:
        """The fit as statisticians read it."""
        local = self.report.local
        sites = None if local is None else join_site_fits(self.model, np.asarray(local[0]), local[1])
        return regression_of(self.model, self.settings, self.search, self.report.means, site_fits=sites)


def write_fit(folder: Path, fit: FittedRegression) -> None:
    """Write a fit for the lead: the estimates and the sums at them, and nothing of the rounds' sums."""
    folder.mkdir(parents=True, exist_ok=True)
    zero = jnp.zeros(())
    search = fit.search._replace(direction=0 * fit.search.direction, slope=zero, value=zero, size=zero, step=zero)
    leaves = {f"{i:03d}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves((search, fit.report)))}

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
            w = jnp.zeros(len(model.names))
            like = jax.eval_shape(lambda: (newton.start(w), SumsOfFit(sends_own_fits(settings)).init(
                w, jnp.ones(len(model.sites)))))
        with np.load(folder / _NUMBERS_FILE) as file:
            leaves: Sequence[Any] = [file[name] for name in sorted(file.files)]
        search, report = jax.tree.unflatten(jax.tree.structure(like), leaves)
        if any(leaf.shape != expected.shape for leaf, expected in zip(leaves, jax.tree.leaves(like), strict=True)):
            raise ValueError("an array has another shape")
        return FittedRegression(model, settings, search, report, *content["bytes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} has no fit of a regression, or it is damaged ({error}): run the command again with "
                         "another --out") from error

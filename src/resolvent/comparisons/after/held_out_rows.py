"""The models of one method, each with rows that it was not trained on: for calibration and importance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.data.federated import FederatedData
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.problem.fitted import Fitted
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.record.result import Result

__all__ = ["SHARED", "HeldOutRows", "LabelledInputs", "SiteRows", "choose_method_name", "rows_of_party",
           "rows_of_results", "with_shared_model"]

SHARED = "shared model"  # its name in tables


class LabelledInputs(NamedTuple):
    """Inputs of a model with known labels.

    Attributes:
        x: [n, ...] inputs.
        y: [n] class numbers or targets.
    """

    x: NDArray[Any]
    y: NDArray[Any]

    def __add__(self, other: "LabelledInputs") -> "LabelledInputs":  # type: ignore[override]
        return LabelledInputs(np.concatenate([self.x, other.x]), np.concatenate([self.y, other.y]))


class SiteRows(NamedTuple):
    """A model and rows that it was not trained on.

    Attributes:
        fitted: the personal model of a site, or the shared model, without calibration and threshold.
        validation: the rows to which a calibration is fitted.
        test: the rows on which it is measured.
    """

    fitted: Fitted
    validation: LabelledInputs
    test: LabelledInputs


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """The models of one method, each with rows that it was not trained on.

    Attributes:
        method: name of the method.
        sites: name of a site -> its personal model and its rows.
        shared: the shared model and the rows of all sites; None without a shared model.
        models: the folder of the models; None for a comparison in memory.
    """

    method: str
    sites: dict[str, SiteRows]
    shared: SiteRows | None
    models: ModelFolder | None = None

    def chosen(self, names: Sequence[str]) -> dict[str | None, SiteRows]:
        """The models of these sites; of all sites and, under None, the shared model if no site is named.

        Raises:
            InputError: there is no such site.
        """
        for name in names:
            if name not in self.sites:
                raise InputError(f"there is no site {quote(name)} with rows; there are "
                                 f"{shorten(', '.join(self.sites))}{nearest(name, self.sites)}")
        if names:
            return {name: self.sites[name] for name in names}
        models: dict[str | None, SiteRows] = dict(self.sites.items())
        return models if self.shared is None else {**models, None: self.shared}


def rows_of_results(results: Mapping[str, Result], method: str | None, choice: str | None) -> HeldOutRows:
    """The validation and test rows of a comparison in memory, with the models of its first seed.

    Args:
        results: label of a method -> its result.
        method: name of a method; None: the one that the federation should run, or the only one.
        choice: the method that the federation should run; None: it is not known.

    Raises:
        InputError: there is no such method, or the problem has no samples.
    """
    name = choose_method_name(method, list(results), choice)
    result = results[name]
    data = result.data
    if data is None:
        raise InputError("the comparison has no samples with labels: calibration and importance are for classifiers "
                         "and regressions")
    sites = {str(site): rows_of_party(result.fitted(k), data, k) for k, site in enumerate(data.parties)}
    return with_shared_model(name, sites, None if result.server_model is None else result.fitted())


def choose_method_name(method: str | None, methods: Sequence[str], choice: str | None) -> str:
    """The named method; without a name the one that the federation should run, or the only one.

    Raises:
        InputError: there is no such method, or none is named and there is no choice.
    """
    if method is not None and method not in methods:
        raise InputError(f"there is no method {quote(method)}; there are {shorten(', '.join(methods))}"
                         f"{nearest(method, methods)}")
    if method is None and choice is None and len(methods) > 1:
        raise InputError(f"there are several methods, and none was chosen for the federation: name one of "
                         f"{shorten(', '.join(methods))}")
    return method or choice or methods[0]


def rows_of_party(fitted: Fitted, data: FederatedData, party: int) -> SiteRows:
    """The validation and test rows of a party, with its model."""
    return SiteRows(fitted, *(LabelledInputs(*data.party(party, split)) for split in ("validation", "test")))


def with_shared_model(method: str, sites: dict[str, SiteRows], shared: Fitted | None,
                 models: ModelFolder | None = None) -> HeldOutRows:
    """The sites, and the shared model with the rows of all sites."""
    parts = list(sites.values())
    if shared is None or not parts:
        return HeldOutRows(method, sites, None, models)
    validation, test = parts[0].validation, parts[0].test
    for part in parts[1:]:
        validation, test = validation + part.validation, test + part.test
    return HeldOutRows(method, sites, SiteRows(shared, validation, test), models)

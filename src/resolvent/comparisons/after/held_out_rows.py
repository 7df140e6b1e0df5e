"""The models of the sites, each with rows that it was not trained on: for calibration and importance."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from resolvent.comparisons.after.advised import SiteModel, nothing_to_use, reasons_against
from resolvent.data.federated import FederatedData
from resolvent.data.partition.folds import split_fold
from resolvent.errors import InputError, nearest, quote, shorten
from resolvent.predict.fitted import Fitted
from resolvent.simulator.record.model_folder import SavedModels
from resolvent.simulator.record.result import Result

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
        folds: of a run with folds: the model of each fold with its test rows, which are all rows together; empty
            without folds. Then these rows are used, and ``validation`` and ``test`` are those of the first fold.
    """

    fitted: Fitted
    validation: LabelledInputs
    test: LabelledInputs
    folds: "tuple[SiteRows, ...]" = ()

    @property
    def tested(self) -> "tuple[SiteRows, ...]":
        """Models with their test rows: one for each fold, or without folds this one."""
        return self.folds or (self,)


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """The models of the sites, each with rows that it was not trained on.

    Attributes:
        method: the method of the shared model; the model of a site may be of another one, which it is advised to use.
        sites: name of a site -> its model and its rows.
        shared: the shared model and the rows of all sites; None without a shared model.
        against: site -> why none of its models is advised.
    """

    method: str
    sites: dict[str, SiteRows]
    shared: SiteRows | None
    against: Mapping[str, str] = field(default_factory=dict)

    def chosen(self, names: Sequence[str]) -> dict[str | None, SiteRows]:
        """The models of these sites; of all sites and, under None, the shared model if no site is named.

        A site without an advised model is refused if it is named, and otherwise left out with a warning.
        """
        for name in names:
            if name not in self.sites:
                raise InputError(f"there is no site {quote(name)} with rows; there are "
                                 f"{shorten(', '.join(self.sites))}{nearest(name, self.sites)}")
            if name in self.against:
                raise InputError(nothing_to_use(name, self.against[name]))
        if names:
            return {name: self.sites[name] for name in names}
        for name, reason in self.against.items():
            warnings.warn(nothing_to_use(name, reason), stacklevel=4)
        models: dict[str | None, SiteRows] = {name: site for name, site in self.sites.items()
                                              if name not in self.against}
        if self.shared is not None:
            models[None] = self.shared
        if not models:
            raise InputError("no site has a model that is worth using: name a method to use its models nevertheless")
        return models


def rows_of_results(results: Mapping[str, Result], method: str, use: Mapping[str, SiteModel], data: Any,
                    fold_models: Mapping[str, Sequence[SavedModels]]) -> HeldOutRows:
    """The validation and test rows of a comparison in memory, with the models of its first seed.

    Args:
        results: label of a method -> its result.
        method: the method of the shared model.
        use: site -> its model; a site that is not named uses its model of the method.
        data: what the comparison trained on, before it was divided into folds.
        fold_models: label of a method -> its models of the second fold and the later ones; empty without folds.
    """
    result = results[method]
    if not isinstance(data, FederatedData):
        raise InputError("the comparison has no samples with labels: calibration and importance are for classifiers "
                         "and regressions")

    def of_fold(fold: int, site: str | None) -> Fitted | None:
        model = use.get(str(site), SiteModel(method))
        if site is None and result.server_model is None:
            return None
        of_model = None if site is None or model.is_shared else sites.index(site)
        fitted = (fold_models[model.method][fold - 1] if fold else results[model.method]).fitted(of_model)
        return None if fitted is None else replace(fitted, site=site)

    sites, folds = [*map(str, data.parties)], len(fold_models.get(method, ())) + 1
    return replace(rows_of_models(method, data, sites, folds, result.seed, of_fold), against=reasons_against(use))


def choose_method_name(method: str | None, methods: Sequence[str], choice: str | None) -> str:
    """The named method; without a name the one that the federation should run, or the only one."""
    if method is not None and method not in methods:
        raise InputError(f"there is no method {quote(method)}; there are {shorten(', '.join(methods))}"
                         f"{nearest(method, methods)}")
    if method is None and choice is None and len(methods) > 1:
        raise InputError(f"there are several methods, and none was chosen for the federation: name one of "
                         f"{shorten(', '.join(methods))}")
    return method or choice or methods[0]


def rows_of_models(method: str, data: FederatedData, sites: Sequence[str], folds: int, seed: int,
                   fitted: Callable[[int, str | None], Fitted | None]) -> HeldOutRows:
    """The validation and test rows of all sites of a run, with their models; of all folds, if there are several.

    Args:
        method: the method of the shared model.
        data: the samples of the run, before they were divided into folds.
        sites: the names of the parties.
        fitted: (fold, site) -> its model; (fold, None) -> the shared model of the fold, or None.
    """
    of_folds = []
    for fold in range(folds):
        samples, _, is_repeated = (data, None, None) if folds == 1 else split_fold(data, fold, folds, seed)
        parts = {}
        for k, name in enumerate(sites):
            model = fitted(fold, name)
            assert model is not None
            validation, test = (LabelledInputs(*samples.party(k, split)) for split in ("validation", "test"))
            if is_repeated is not None:
                rows = samples.splits["test"]
                counts = ~is_repeated[rows.offset[k]:rows.offset[k] + rows.length[k]]
                test = LabelledInputs(test.x[counts], test.y[counts])
            parts[name] = SiteRows(model, validation, test)
        of_folds.append(with_shared_model(method, parts, fitted(fold, None)))
    if folds == 1:
        return of_folds[0]
    first, shared = of_folds[0], tuple(part.shared for part in of_folds if part.shared is not None)
    return HeldOutRows(method, {name: first.sites[name]._replace(folds=tuple(part.sites[name] for part in of_folds))
                                for name in sites}, shared[0]._replace(folds=shared) if shared else None)


def with_shared_model(method: str, sites: dict[str, SiteRows], shared: Fitted | None) -> HeldOutRows:
    """The sites, and the shared model with the rows of all sites; without it if there is none, or no site."""
    parts = list(sites.values())
    if shared is None or not parts:
        return HeldOutRows(method, sites, None)
    validation, test = parts[0].validation, parts[0].test
    for part in parts[1:]:
        validation, test = validation + part.validation, test + part.test
    return HeldOutRows(method, sites, SiteRows(shared, validation, test))

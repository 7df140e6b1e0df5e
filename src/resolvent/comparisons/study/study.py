"""``Study``: comparisons on several data sets, which a program ran or which are read from run folders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from resolvent.arguments import checked
from resolvent.comparisons.runs.compared_methods import ComparedMethods
from resolvent.comparisons.study.parts import StudyPart, part_of, read_part
from resolvent.comparisons.study.readings import StudyReadings
from resolvent.data.html_tables import html_facts
from resolvent.errors import InputError, quote


@dataclass(frozen=True, eq=False, repr=False)
class Study(StudyReadings):
    """Comparisons on several data sets. Each has its own sites and scores; the methods have the same labels.

    Attributes:
        runs: name of a data set -> the outcome of ``rv.compare``; or a run folder; or several run folders, whose
            methods are compared as if they had been one run, such as those of a colleague with the same data, split and
            seeds.

    Raises:
        InputError: there is no data set, a folder has no finished run, or runs of one data set have other test rows.

    Example:
        >>> solver, comparisons = rv.SGD(0.1), {}
        >>> for parties in (3, 5):
        ...     data = rv.datasets.digits(parties=parties)
        ...     methods = {"FedAvg": rv.fedavg(solver), "FedProx": rv.fedprox(solver, mu=1.0)}
        ...     comparisons[f"{parties} sites"] = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2,
        ...                                                  progress=False)
        >>> study = rv.Study(comparisons)
        >>> study.table()["data"].tolist()
        ['3 sites', '3 sites', '5 sites', '5 sites']
    """

    runs: Mapping[str, ComparedMethods | Path | str | Sequence[Path | str]]

    @checked
    def __init__(self, runs: Mapping[str, ComparedMethods | Path | str | Sequence[Path | str]]) -> None:
        if not runs:
            raise InputError("Study: there is no data set: give a mapping from names to comparisons or run folders")
        object.__setattr__(self, "runs", dict(runs))
        object.__setattr__(self, "_parts", {name: _part(run) for name, run in runs.items()})

    @property
    @override
    def parts(self) -> Mapping[str, StudyPart]:
        parts: Mapping[str, StudyPart] = self.__dict__["_parts"]
        return parts

    def __repr__(self) -> str:
        return f"Study({', '.join(map(quote, self.parts))})"

    def _repr_html_(self) -> str:
        return html_facts("Study", {"data sets": ", ".join(self.parts)}) + str(self.table("html"))


def _part(run: ComparedMethods | Path | str | Sequence[Path | str]) -> StudyPart:
    if isinstance(run, ComparedMethods):
        return part_of(run)
    return read_part([run] if isinstance(run, str | Path) else list(run))

"""What is read from comparisons on one or several data sets: differences, ranks, costs, figures, tables, a paper."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.study import costs, differences, ranks, tables
from resolvent.comparisons.study.parts import StudyPart
from resolvent.comparisons.study.scores import last_scores
from resolvent.errors import InputError, alternatives, quote
from resolvent.simulator.record.plots import print_context

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from resolvent.comparisons.study.differences import Unit
    from resolvent.comparisons.study.figures import Band, Kind
    from resolvent.comparisons.study.ranks import Ranks
    from resolvent.comparisons.study.tables import MarkedScore
    from resolvent.comparisons.text_tables import TableForm

Blocks = Literal["data", "parties"]


class StudyReadings(ABC):
    """The readings of a study, which may have one data set."""

    @property
    @abstractmethod
    def parts(self) -> Mapping[str, StudyPart]:
        """The comparison on each data set, by name."""

    @property
    def _evidences(self) -> dict[str, Evidence]:
        return {name: part.evidence for name, part in self.parts.items()}

    def _data_sets(self) -> list[list[Evidence]]:
        """The comparisons of each data set: several settings have the same seeds, sites and test rows."""
        grouped: dict[object, list[Evidence]] = {}
        for name, evidence in self._evidences.items():
            rows = evidence.rows
            key = name if rows is None else (evidence.score, evidence.seeds, tuple(evidence.parties), *(
                b"" if values is None else values.tobytes()
                for values in (rows.seed, rows.party, rows.row, rows.labels)), evidence.train and tuple(evidence.train))
            grouped.setdefault(key, []).append(evidence)
        return [*grouped.values()]

    @property
    def has_ranks(self) -> bool:
        """Whether several data sets rank three methods or more."""
        ranks = self._ranks_of_data()
        return ranks is not None and len(ranks.mean) > 2

    def _ranks_of_data(self) -> "Ranks | None":
        """The ranks over the data sets, if there are several."""
        return self.ranks() if len(self._data_sets()) > 1 else None

    def _by_data(self, tables_of_data: "Mapping[str, pd.DataFrame]") -> "pd.DataFrame":
        """The tables of all data sets, one below the other, with their names in the column ``data``."""
        import pandas as pd

        named = []
        for name, table in tables_of_data.items():
            table.insert(0, "data", name)
            named.append(table)
        return pd.concat(named, ignore_index=True)

    def differences(self, reference: str | None = None, *, by: "Unit | None" = None) -> "pd.DataFrame":
        """The paired differences of methods, with intervals, p-values and effects.

        Three kinds of pairs answer three questions. ``rows``: would other test rows of these sites and other seeds show
        the same? The difference is the mean over the sites, and the interval is a bootstrap of the rows of each site,
        each with its values of all seeds, plus the noise between the seeds. ``seeds``: would other seeds, on the same
        test rows? ``parties``: would other parties? For these two it is Student's paired test on the means over the
        parties, or over the seeds.

        Args:
            reference: the method that all others are compared with; default: all pairs of methods.
            by: ``rows``, ``seeds`` or ``parties``; default: rows, or seeds where there are no test rows.

        Returns:
            A row per data set and pair. ``difference`` is positive if ``method`` is better than ``reference``, with the
            interval ``low`` to ``high`` of level 0.95; ``p``, its p-value; ``holm`` and ``bh``, corrected by Holm and
            by Benjamini and Hochberg for the number of pairs of the data set; ``effect``, Cohen's d of the units, their
            mean difference divided by its standard deviation; ``better`` and ``worse``, how many of the ``units``. They
            are NaN where a method diverged, and where a test is not possible.

        Raises:
            InputError: there is no such method, or the runs have no values of test rows.

        Example:
            >>> data, solver = rv.datasets.digits(parties=3), rv.SGD(0.1)
            >>> methods = {"FedAvg": rv.fedavg(solver), "FedProx": rv.fedprox(solver), "RFA": rv.rfa(solver)}
            >>> comparison = rv.compare(methods, rv.models.logistic(64, 10), data, rounds=2, progress=False)
            >>> table = comparison.differences("FedAvg")
            >>> table["method"].tolist(), table["units"].iloc[0] > 100
            (['FedProx', 'RFA'], np.True_)
        """
        return self._by_data({name: differences.differences(evidence, reference, by)
                              for name, evidence in self._evidences.items()})

    def ranks(self, over: "Blocks | None" = None) -> "Ranks":
        """The mean ranks of the methods, with Friedman's test and Nemenyi's critical difference.

        Args:
            over: ``data``: each data set ranks the methods by their means over the seeds and the parties; ``parties``:
                each party does, which gives more ranks, but the parties of a data set share their models. Default: the
                data sets if there are several. Several settings with the same test rows and seeds, as those of a sweep,
                are one data set, which ranks the means over the settings.

        Raises:
            InputError: the data sets have fewer than two methods in common.
        """
        import pandas as pd

        evidences = self._evidences
        data_sets = self._data_sets()
        over = ("data" if len(data_sets) > 1 else "parties") if over is None else over
        first = next(iter(evidences.values()))
        common = [m for m in first.methods if all(m in e.methods for e in evidences.values())]
        if len(common) < 2:
            raise InputError("ranks need at least two methods that all data sets have")
        blocks: dict[tuple[int, Any], pd.Series[float]] = {}
        for number, settings in enumerate(data_sets):
            sign = 1.0 if settings[0].higher_is_better else -1.0
            means = [last_scores(e).groupby(level="method").mean().loc[common] for e in settings]
            by_party = pd.concat(means).groupby(level=0).mean().loc[common]
            table = by_party if over == "parties" else by_party.mean(axis=1).to_frame()
            blocks |= {(number, party): sign * table[party] for party in table}
        return ranks.rank_methods(pd.DataFrame(blocks).T, higher_is_better=True)

    def costs(self, target: float | None = None) -> "pd.DataFrame":
        """What each method spends until its mean score over the parties reaches a target.

        Args:
            target: the score in the unit that tables print, such as 90 for an accuracy of 90 %; default: on each data
                set, the best score that two methods reach in half of their seeds.

        Returns:
            A row per data set and method: in how many of the ``seeds`` the target was ``reached``, at evaluations; the
            median over the seeds of the ``rounds``, the ``bytes`` that all parties receive and send, the ``seconds`` of
            the virtual clock and the largest ``epsilon`` of a party until then, infinite if half of the seeds do not
            reach it, and NaN if it was not measured; and ``area``, the area under the curve of the score, divided by
            the number of rounds.

        Raises:
            InputError: the score cannot have this value, or looks like a share where tables print percent.
        """
        return self._by_data({name: costs.costs(evidence, target) for name, evidence in self._evidences.items()})

    def fairness(self) -> "pd.DataFrame":
        """How the last scores are distributed over the parties.

        Returns:
            A row per data set and method, of means over the seeds: the ``mean`` over the parties, their standard
            deviation ``sd``, the mean of the ``worst decile``, the ``worst`` party, the coefficient of ``gini`` (0 is
            equal) and the ``entropy`` of the parties' shares of the sum of scores, divided by its largest value (1 is
            equal).
        """
        return self._by_data({name: costs.fairness(evidence) for name, evidence in self._evidences.items()})

    def table(self, form: "TableForm" = "frame", *, by: "Unit | None" = None) -> "pd.DataFrame | str":
        """The scores of the methods after the last round, in which tests mark the best and the second best.

        The best are the method with the best mean and all that a test does not distinguish from it, with Holm's
        correction; the second best are the best of the others, and those that are not distinguished from it.

        Args:
            form: ``frame``: a table with the columns data, method, mean, sd (over the seeds) and mark; ``latex``,
                ``markdown`` or ``html``: text, with the best in bold type, and the second best underlined (in Markdown
                in italics).
            by: what the test pairs by, see ``differences``.
        """
        scores = self.marked_scores(by)
        if form == "frame":
            return tables.table_frame(scores)
        return tables.table_text(self._evidences, scores, form, self._caption(by))

    def marked_scores(self, by: "Unit | None" = None) -> "dict[str, dict[str, MarkedScore]]":
        """data set -> method -> the numbers of ``table``, with the marks."""
        return {name: tables.marked_scores(evidence, by) for name, evidence in self._evidences.items()}

    def _caption(self, by: "Unit | None") -> str:
        evidences = list(self._evidences.values())
        units = {differences.unit_of(e) if by is None else by for e in evidences}
        has_seeds = max(len(e.seeds) for e in evidences) > 1
        spread = "; after ±, the standard deviation over the seeds" if has_seeds else ""
        second = "underlined or in italics"
        return (f"Mean over the sites after the last round{spread}. Bold: the best mean, and the methods that a test "
                f"paired by {' or '.join(sorted(units))} does not distinguish from it (Holm, level 0.05); {second}: "
                "the same among the other methods. Collapsed: with a seed worse than predictions without training, or "
                "with ten times the spread of the others over the seeds; such a method has no mark.")

    def plot(self, kind: "Kind" = "curves", *, data: str | None = None, band: "Band" = "seeds",
             reference: str | None = None, by: "Unit | None" = None) -> "Figure":
        """A figure for a paper, with a panel for each data set.

        Args:
            kind: ``curves``: the mean score against rounds; ``traffic``: against the bytes that are sent; ``parties``:
                the distribution of the parties' scores; ``gains``: the gain at each party; ``differences``: those of
                ``differences``, with their intervals; ``ranks``: the critical-difference diagram.
            data: one data set; default: all.
            band: of curves, one standard deviation over the ``seeds``, or the 10th to the 90th percentile of the
                ``parties``.
            reference: of gains and differences; default: training alone, or the first method.
            by: of differences, see there.

        Raises:
            InputError: there is no such data set or method.
        """
        from resolvent.comparisons.study import figures  # imports matplotlib, which takes long

        evidences = self._evidences
        if data is not None:
            if data not in evidences:
                raise InputError(f"data: there is no data set {quote(data)}{alternatives(data, evidences)}")
            evidences = {data: evidences[data]}
        first = next(iter(evidences.values()))
        if reference is not None and reference not in first.methods:
            known = alternatives(reference, first.methods)
            raise InputError(f"reference: there is no method {quote(reference)}{known}")
        with print_context():
            return figures.draw(kind, evidences, figures.reference_of(first, reference), band, by, self.ranks)

    def paragraph(self, *, by: "Unit | None" = None) -> str:
        """What the study shows, as a paragraph for a paper."""
        from resolvent.comparisons.study.paper import paragraph

        return paragraph(self._evidences, self._ranks_of_data(), by)

    def paper(self, folder: Path | str, *, target: float | None = None, reference: str | None = None,
              command: str | None = None) -> Path:
        """Write the figures, the tables, a paragraph and the settings of the study into a folder.

        Figures are PDF files as wide as a column of a paper, or a page for several data sets. Each table is there as
        LaTeX, Markdown, HTML and CSV; the numbers of CSV files are not rounded.

        Args:
            folder: the folder, which is made if there is none; files of these names in it are replaced.
            target: of the costs, see ``costs``.
            reference: of gains and differences, see ``plot``.
            command: the command that makes the files again; default: ``resolvent compare --paper paper`` with the run
                folders, or the
                command line of this program.

        Returns:
            The page with the paragraph, the tables, the command and the settings, ``paper.md``.
        """
        from resolvent.comparisons.study.figures import KINDS, reference_of
        from resolvent.comparisons.study.paper import Paper, write_paper

        over = reference_of(next(iter(self._evidences.values())), reference)
        kinds = [kind for kind in KINDS if kind != "ranks" or self.has_ranks]
        forms: tuple[TableForm, ...] = ("latex", "markdown", "html")
        return write_paper(Path(folder), Paper(
            self.parts, self.paragraph(), over, command, tables.table_frame(self.marked_scores()),
            {form: str(self.table(form)) for form in forms},
            {"differences": self.differences(over), "pairs": self.differences(), "costs": self.costs(target),
             "fairness": self.fairness()}, {kind: self.plot(kind, reference=over) for kind in kinds}))

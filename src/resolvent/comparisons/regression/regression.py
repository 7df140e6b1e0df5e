"""A fitted regression as statisticians read it."""

from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from resolvent.comparisons.regression.fit import Fit
from resolvent.comparisons.regression.heterogeneity import Heterogeneity, heterogeneity
from resolvent.comparisons.regression.wording import summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Regression(Fit):
    """A regression that was fitted over all sites by sums; its numbers are those of ``Fit``.

    Example:
        >>> fit = rv.regress(frame, "ill ~ age + C(ward)", party="hospital")  # doctest: +SKIP
        >>> fit.table.loc["age", "odds ratio"]  # doctest: +SKIP
        1.04
    """

    def heterogeneity(self) -> Heterogeneity:
        """Whether, where and by how much the coefficients differ between sites."""
        return heterogeneity(self)

    def summary(self) -> str:
        """The fit as text."""
        return summary(self)

    def plot(self) -> "Figure":
        """The estimates with their intervals, as ratios where the family has them."""
        from resolvent.comparisons.regression.figures import estimates_figure

        return estimates_figure(self)

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write ``report.html``, ``estimates.csv``, ``covariance.csv`` and ``regression.json`` into a folder.

        Returns:
            The path of the report.

        Raises:
            InputError: the folder has files and ``overwrite`` is not set.
        """
        from resolvent.comparisons.regression.page import write_regression

        can_differ = len(self.model.sites) > 1 and not any(self.penalties) and (
            self.rows is not None or self.site_fits is not None)
        return write_regression(self, self.heterogeneity() if can_differ else None, Path(folder), overwrite=overwrite)

    @override
    def __repr__(self) -> str:
        return self.summary()

"""What a plan on a table has found: as text, as a table of numbers, and as a page."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from resolvent.comparisons.text_tables import TableForm
from resolvent.data.files.atomic_files import write_text
from resolvent.data.files.plain_values import read_plain
from resolvent.errors import InputError

if TYPE_CHECKING:
    import pandas as pd
    from markupsafe import Markup


def folder_to_write(folder: Path | str, *, overwrite: bool) -> Path:
    """The folder of a page and its tables, which is made; refuse one that has files, unless they may be replaced."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise InputError(f"{folder} has files: name another folder, or set overwrite")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


class PlanResult(ABC):
    """What one round of numbers has found, from the sums of all sites.

    Attributes:
        kind: the name of its files and the title of its page.
        settings: what was asked.
        agreement: what all sites use; its ``sites`` are their numbers of rows.
    """

    kind: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    agreement_type: ClassVar[type[Any]]
    settings: Any
    agreement: Any

    @property
    def result(self) -> Self:
        """What a lead gets from ``read``."""
        return self

    @property
    @abstractmethod
    def numbers(self) -> NDArray[np.float64]:
        """The sums of all sites as one vector."""

    @property
    @abstractmethod
    def table(self) -> "pd.DataFrame":
        """A row for each number, or for each time."""

    @abstractmethod
    def tables(self, form: TableForm = "text") -> list[str]:
        """The tables in a language; the first one is of all sites."""

    def to_text(self, form: TableForm = "text") -> str:
        """The tables in a language; a ``*`` marks a number that is not exact.

        Args:
            form: ``text``, ``markdown``, ``latex`` or ``html``.
        """
        return "\n\n".join(self.tables(form))

    @abstractmethod
    def facts(self) -> list[str]:
        """What was found about the whole; a sentence each."""

    def write(self, folder: Path) -> None:
        """Write what ``read`` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / self.file(), json.dumps({"settings": asdict(self.settings),
                                                     "agreement": asdict(self.agreement), **self._arrays()}))

    @abstractmethod
    def _arrays(self) -> dict[str, Any]:
        """The sums as values of JSON."""

    def pictures(self) -> "list[Markup]":
        """The pictures of the page."""
        return []

    @classmethod
    def file(cls) -> str:
        """The name of the file that ``read`` reads."""
        return f"{cls.kind}.json"

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The result that ``write`` wrote.

        Raises:
            InputError: there is none, or it is damaged.
        """
        try:
            content: dict[str, Any] = json.loads((folder / cls.file()).read_text("utf-8"))
            agreement = read_plain(cls.agreement_type, content["agreement"], cls.file())
            return cls._of_arrays(cls.settings_type(**content["settings"]), agreement, content)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{folder} has no {cls.kind}, or it is damaged ({error}): run the command again with "
                             "another --out") from error

    @classmethod
    @abstractmethod
    def _of_arrays(cls, settings: Any, agreement: Any, content: Mapping[str, Any]) -> Self:
        """The result of settings, an agreement and what ``_arrays`` gave."""

    def save(self, folder: Path | str, *, overwrite: bool = False) -> Path:
        """Write ``report.html``, and the numbers as .csv and .json, into a folder.

        Returns:
            The path of the report.

        Raises:
            InputError: the folder has files and ``overwrite`` is not set.
        """
        from resolvent.comparisons.pages import Section, write_sections

        folder = folder_to_write(folder, overwrite=overwrite)
        write_text(folder / f"{self.kind}.csv", self.table.to_csv(index=False))
        self.write(folder)
        write_sections(folder / "report.html", self.kind.capitalize(), [
            Section(sentences=self.facts(), pictures=self.pictures()), Section(tables=self.to_text("html"))])
        return folder / "report.html"

    @override
    def __repr__(self) -> str:
        return "\n".join([*self.facts(), "", self.to_text()])

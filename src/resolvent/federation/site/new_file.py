"""A new ``site.yaml``: every setting with a comment, and limits that are safe without knowledge of the table."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from resolvent.comparisons.experiment.changes import apply_changes
from resolvent.data.files.atomic_files import hidden_sibling
from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile, read_site
from resolvent.federation.protocol.limits import WHY, Limits


class Question(NamedTuple):
    """A question to the person who writes the file of a site.

    Attributes:
        key: the key that the answer sets, such as ``limits.labels``.
        kind: what the answer is.
        default: the value of an empty answer, as it is shown.
    """

    key: str
    text: str
    kind: Literal["text", "names", "number", "choice"]
    default: str


QUESTIONS = (
    Question("limits.labels", "Columns that models may predict, with commas between them", "names", "all"),
    Question("limits.features", "Columns that models may read, with commas between them; without an answer, those that "
             "are neither free text nor an identifier", "names", "all"),
    Question("approval", "Does a person at this site decide about each plan before it runs", "choice", "yes"),
    Question("limits.scores", "May the scores of models on this site's rows leave it", "choice", "yes"),
    Question("limits.max_total_rounds", "Largest number of rounds in which the site answers about this table, in all "
             "experiments", "number", "any"),
    Question("limits.max_lead_rounds", "Largest number of these rounds for one lead", "number", "any"),
)
"""The questions of ``resolvent party new`` after that about the table."""

_COMMENTS = {
    "table": "The table: .csv, .csv.gz, .tsv or .parquet with a row for each person; a relative path begins here.",
    "columns": "Name of a column in the federation -> its name in this table, for names that differ.",
    "separator": "The character between two values in a text file.",
    "decimal": "The decimal mark of numbers in a text file.",
    "encoding": "The character encoding of a text file, such as utf-8 or cp1252.",
    "validation": "Share of the rows with which methods and settings are chosen. This site decides it.",
    "test": "Share of the rows that judge the methods. This site decides it.",
    "models": "Models of your own that an experiment may name, module:function. They are code that runs here.",
    "approval": "Plans that run without a decision of a person here: leads, algorithms, labels, max_rounds. With {}\n"
                "# there are none. Without this key all plans that the lead has signed run, within the limits.",
}


def read_answer(question: Question, answer: str) -> Any:
    """The value of an answer; None for the default of a question about names or a number."""
    answer = answer.strip()
    if question.kind == "choice":
        chosen = (answer or question.default).lower()
        if chosen not in ("yes", "no", "y", "n"):
            raise InputError(f"'{answer}' is not an answer: yes or no")
        return chosen.startswith("y")
    if not answer or answer == question.default:
        return None
    if question.kind == "number":
        if not answer.isdecimal() or not int(answer):
            raise InputError(f"'{answer}' is not a number of rounds, such as 200")
        return int(answer)
    return [name.strip() for name in answer.split(",") if name.strip()] if question.kind == "names" else answer


def write_site_file(path: Path, table: str, answers: Mapping[str, Any], changes: Sequence[str] = ()) -> SiteFile:
    """Write the file of a site; an existing file is not changed.

    Args:
        answers: key of a question -> value; the others have their defaults.
        changes: further settings, each ``key=value``, such as ``limits.min_cell=10``.
    """
    if path.exists():
        raise InputError(f"{path} exists, and is not overwritten: edit it, or give --site another name")
    if not (path.parent / table).is_file():
        raise InputError(f"there is no file {path.parent / table}: name the table of the site, beginning at the folder "
                         f"of {path.name}")
    settings: dict[str, Any] = {"table": table, "approval": {}, "limits": {}}
    for key, value in answers.items():
        if key == "approval":
            settings |= {} if value else {"approval": None}
        elif value is not None:
            settings["limits"][key.removeprefix("limits.")] = value
    apply_changes(settings, changes)
    settings = {key: value for key, value in settings.items() if (key, value) != ("approval", None)}
    partial = hidden_sibling(path, ".new")
    try:
        partial.write_text("\n".join(_lines(settings)), "utf-8")
        site = read_site(partial)
        os.link(partial, path)  # fails if another process has made the file
    except InputError as error:
        raise InputError(str(error).replace(str(partial), str(path))) from error
    except FileExistsError:
        raise InputError(f"{path} exists, and is not overwritten") from None
    finally:
        partial.unlink(missing_ok=True)
    return site


def _lines(settings: Mapping[str, Any]) -> Iterator[str]:
    yield "# The file of this site: its table and what it allows. It is read here and is not sent."
    yield "# resolvent party check --kit KIT --site FILE shows what is in force, and what would leave."
    for item in fields(SiteFile):
        if item.name not in _COMMENTS:
            continue
        yield ""
        yield f"# {_COMMENTS[item.name]}"
        if item.name in settings:
            yield f"{item.name}: {_written(settings[item.name])}"
        else:
            yield f"# {item.name}: {'{}' if item.name == 'approval' else _written(item.default)}"
    unknown = {*settings} - {*_COMMENTS, "limits"}
    yield from (f"{name}: {_written(settings[name])}" for name in sorted(unknown))
    yield ""
    yield "# What this site allows. Above each limit is the reason for it, which is what a change would cost. A limit"
    yield "# without a value, behind #, allows any."
    yield "limits:"
    limits = settings.get("limits") or {}
    for limit in fields(Limits):
        value = limits.get(limit.name, limit.default)
        yield f"  # {WHY[limit.name]}"
        yield f"  {'# ' if value is None else ''}{limit.name}: {_written(value) if value is not None else ''}".rstrip()
    yield from (f"  {name}: {_written(value)}" for name, value in limits.items() if name not in WHY)
    yield ""


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)

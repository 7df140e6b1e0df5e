"""What is said about the table of an experiment before the first round of a run."""

from pathlib import Path

from resolvent.comparisons.experiment.binding import Bound
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.errors import InputError, count_of

_MAX_LINES = 5
_MAX_ERRORS = 30  # that a run prints before it refuses the data
_MAX_FILE_BYTES = 100_000_000  # of a table that `resolvent run` checks; `resolvent check` has no limit


def first_lines(file: ExperimentFile) -> list[str]:
    """Lines with all errors about the table of an experiment, and the first warnings, for the beginning of a run."""
    part = file.bound.parts.get("data")
    if not isinstance(part, Bound) or "table" not in part.values:
        return []
    from resolvent.comparisons.experiment.data_check import check_file  # images and texts need no checks of tables
    from resolvent.tables.party_tables import table

    if part.function is not table:
        return []
    try:
        if Path(part.values["table"]).expanduser().stat().st_size > _MAX_FILE_BYTES:
            return ["the table is large, so that only `resolvent check` examines it"]
        findings = [f for f in check_file(file).findings if f.severity != "note"]
    except (InputError, OSError):  # the run says it
        return []
    limit = max(_MAX_LINES - 1, min(sum(f.severity == "error" for f in findings), _MAX_ERRORS))
    shown = findings if len(findings) <= _MAX_LINES else findings[:limit]
    more = [f"and {count_of(len(findings) - len(shown), 'more finding')} about the data: resolvent check"] * (
        shown != findings)
    return [finding.line for finding in shown] + more

"""The file of a plan on a table, or a table and the options of a command instead of a file."""

from collections.abc import Sequence
from json import dumps
from pathlib import Path
from typing import Any, TypeVar

from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.comparisons.plan_file import PlanFile
from resolvent.errors import InputError
from resolvent.tables.table_options import cell_rules

_File = TypeVar("_File", bound=PlanFile[Any])


def plan_file(plan: type[_File], rows: str, party: str | None, changes: Sequence[str]) -> _File:
    """The file of a plan; for a table, one that names the table and has the changes as its settings.

    Args:
        rows: the file of the plan, a table, or an experiment, whose ``data`` names a table.
        party: the column of the site; None: that of the file.
    """
    if plan.is_in(rows):
        return plan.load(rows, [*changes, *([] if party is None else [f"data.party={dumps(party)}"])])
    text = write_yaml({"data": _table_of(rows, party, plan.needs_party), plan.kind: {}})
    return plan.parse(text, rows, Path(rows).stem, changes)


def _table_of(rows: str, party: str | None, needs_party: bool) -> dict[str, Any]:
    """The settings of the table: its path, the column of the site, empty if there is none, and how it is read."""
    if Path(rows).suffix.lower() not in (".yaml", ".yml"):
        if party is None and needs_party:
            raise InputError(f"--party names the column of {rows} that says which site a row is from, such as --party "
                             "hospital")
        return {"table": rows, "party": party or ""}
    # Imported here: an experiment needs the simulator, a plan on a table does not.
    from resolvent.comparisons.experiment.binding import Bound
    from resolvent.comparisons.experiment.experiment_file import ExperimentFile
    from resolvent.tables.party_tables import table

    part = ExperimentFile.load(rows).bound.parts.get("data")
    if not isinstance(part, Bound) or part.function is not table:
        raise InputError(f"the data of {rows} are no table: name a .csv or .parquet file")
    values = part.values
    codes = {name: list(cells) for name, cells in cell_rules(values.get("missing"), ()).codes.items() if cells}
    return {"table": str(values["table"]), "party": party or str(values["party"]), "missing": codes or None,
            **{name: list(values.get(name) or ()) for name in ("text", "exclude")},
            **{name: values[name] for name in ("separator", "decimal", "encoding") if name in values}}

"""The rounds in which a site has answered about a table, over all experiments: a budget that survives restarts.

The ledger is a log with a line for each answered round of a method. The line is on the disk before the reply leaves. It
is no part of a run's folder, so that neither a new run nor a removed one gives rounds back.
"""

import json
from pathlib import Path

from resolvent.federation.protocol.stores import append_to_log

__all__ = ["RoundLedger"]


class RoundLedger:
    """The rounds of one table.

    Args:
        path: the file of the ledger, which can have several tables.
        table: path of the table.
    """

    def __init__(self, path: Path, table: str) -> None:
        self._path, self._table = path, table
        self._rounds: set[tuple[str, int, str]] = set()
        for line in path.read_bytes().splitlines() if path.is_file() else ():
            try:
                entry = json.loads(line)
            except ValueError:  # it was not completed, so that the reply has not left
                continue
            if entry["table"] == table:
                self._rounds.add((entry["run"], entry["round"], entry["message"]))

    @property
    def used(self) -> int:
        """Number of rounds in which the site has answered."""
        return len(self._rounds)

    def used_by(self, run: str) -> int:
        """Number of these rounds in the methods of a run."""
        return sum(name.partition("/")[0] == run for name, _, _ in self._rounds)

    def has(self, run: str, number: int, message: str) -> bool:
        """Whether a round is in the ledger: the process was killed before it had answered."""
        return (run, number, message) in self._rounds

    def add(self, run: str, number: int, message: str) -> None:
        """Write a round to the ledger.

        Args:
            run: the run of a method.
            number: number of the round.
            message: identity of the message that asks for it.

        Raises:
            OSError: the line cannot be written.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        append_to_log(self._path, {"table": self._table, "run": run, "round": number, "message": message})
        self._rounds.add((run, number, message))

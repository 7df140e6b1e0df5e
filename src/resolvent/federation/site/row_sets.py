"""The sets of rows about which a site has answered: no two of them differ by few rows.

Rows with missing values are left out, so that two regressions with other columns are about other rows. Whoever
subtracts their sums has the sum over the rows in which they differ.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from resolvent.data.files.atomic_files import write_text
from resolvent.federation.protocol.limits import Limits, refusal_of_limits

__all__ = ["check_row_set"]

_FILE = "row-sets.json"


def check_row_set(folder: Path, version: int, used: NDArray[np.bool_], limits: Limits) -> None:
    """Check and store a set of rows.

    Args:
        folder: the folder of the versions of the site's tables.
        version: number of the version, whose rows have a fixed order.
        used: [rows] which of them are used.

    Raises:
        Refusal: the set differs by fewer than ``min_cell`` rows from all rows, or from a set that was used before.
    """
    path = folder / _FILE
    content: dict[str, list[str]] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    known = content.setdefault(str(version), [_text(np.ones(len(used), bool))])
    text = _text(used)
    if text in known:
        return
    for other in known:
        of_other = np.unpackbits(np.frombuffer(bytes.fromhex(other), np.uint8), count=len(used))
        differing = int(np.sum(of_other != used))
        if differing < limits.min_cell:
            raise refusal_of_limits({"min_cell": f"because of missing values, the rows of this plan differ by "
                                     f"{differing} from those of all columns or of an earlier plan: fill the values "
                                     "in, or leave the rows out of the table"}, limits)
    known.append(text)
    write_text(path, json.dumps(content))


def _text(used: NDArray[np.bool_]) -> str:
    return np.packbits(used).tobytes().hex()

"""What several benchmarks share: options of command lines, the JSON files that they write, and an allocator."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ALLOCATOR", "as_json", "drawing_parser"]

# glibc otherwise returns large buffers to the system after each use: 9 to 27 % of PyTorch's time.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "4294967296"}

Rows = Sequence[Mapping[str, Any]]


def drawing_parser(doc: str) -> argparse.ArgumentParser:
    """The options of a benchmark with seeds, a JSON file and a figure, which can be drawn again from the file."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=3, help="number of divisions of the data")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    parser.add_argument("--figure", type=Path, help="draw them")
    parser.add_argument("--redraw", action="store_true", help="run nothing; draw the JSON file of --out again")
    return parser


def as_json(facts: Mapping[str, Any], **tables: Rows) -> str:
    """Facts about a measurement and its tables, with a line for each row, so that changes are easy to compare."""
    parts = [f',\n "{name}": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]" for name, rows in tables.items()]
    return json.dumps(facts, indent=1)[:-2] + "".join(parts) + "\n}\n"

"""The rooms of the house: imports point to rooms further up the list only."""

import ast
from pathlib import Path

import pytest

import resolvent

ROOMS = ["math", "xla", "data", "problem", "algorithms", "simulator", "testing", "deploy", "study", "cli"]
ROOT = Path(resolvent.__file__).parent
FILES = sorted(p for p in ROOT.rglob("*.py") if len(p.relative_to(ROOT).parts) > 1)


def imported_rooms(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = ([a.name for a in node.names] if isinstance(node, ast.Import)
                 else [node.module] if isinstance(node, ast.ImportFrom) and node.module else [])
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        for name in names:
            parts = name.split(".")
            if parts[0] == "resolvent":
                yield parts[1] if len(parts) > 1 else "resolvent"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_arrows_point_up_the_list(path):
    room_index = ROOMS.index(path.relative_to(ROOT).parts[0])
    for room in imported_rooms(path):
        if room in ("arguments", "errors"):
            continue
        assert room in ROOMS, f"{path.name} imports resolvent.{room}"
        assert ROOMS.index(room) <= room_index, f"{path.name}, in {ROOMS[room_index]}/, imports from {room}/"


def test_mathematics_has_no_federated_word():
    for path in (ROOT / "math").glob("*.py"):
        code = ast.parse(path.read_text("utf-8"))
        names = {getattr(n, "id", None) or getattr(n, "arg", None) for n in ast.walk(code)}
        assert not names & {"party", "parties", "server", "cohort", "client", "federation"}, path.name

"""The parts and rooms of the house: imports point to rooms further up the list only, and never in a circle."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import resolvent

INDEPENDENT = "xla"  # a part that imports nothing of the library, so that it could be a package of its own
CORE = ["math", "data", "tables", "problem", "torch", "algorithms", "differential_privacy", "predict", "simulator",
        "testing", "regression", "comparisons"]
ROOMS = [INDEPENDENT, *CORE, "federation", "red_team", "cli"]
# Of federation: sites do not import the server, and nothing but the lead knows an engine.
FLOORS = [{"protocol"}, {"secure"}, {"server", "site"}, {"engines"}, {"lead"}]
# Of the simulator: what is moved to a device knows no run, and a plan is read by those who check, measure and run it.
SIMULATOR_FLOORS = [{"mesh"}, {"states"}, {"engine"}, {"storage"}, {"record"}, {"run_options"}, {"user_errors"},
                    {"task"}, {"plan"}, {"doubts"}, {"measurements"}, {"checkpoint"}, {"placement"},
                    {"run", "together"}]
ROOT = Path(resolvent.__file__).parent
PACKAGE = ROOT.with_name("xla_cpu_rewrites")
REPOSITORY = Path(__file__).parents[1]
FILES = sorted(p for p in ROOT.rglob("*.py") if len(p.relative_to(ROOT).parts) > 1)


@cache
def imports_of(path):
    """The imports of a file: at its top, in functions, and for types."""
    return [node for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_rooms(path):
    for node in imports_of(path):
        names = ([a.name for a in node.names] if isinstance(node, ast.Import)
                 else [f"resolvent.{a.name}" for a in node.names] if node.module == "resolvent"
                 else [node.module] if node.module else [])
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        for name in names:
            parts = name.split(".")
            if parts[0] == "resolvent":
                yield parts[1] if len(parts) > 1 else "resolvent"


def test_arrows_point_up_the_list():
    wrong = []
    for path in FILES:
        own_room = path.relative_to(ROOT).parts[0]
        wrong += [f"{path.relative_to(ROOT)} imports from {room}/" for room in imported_rooms(path)
                  if room not in ("arguments", "errors") and not may_import(own_room, room)]
    assert wrong == []


def may_import(own_room, room):
    return room in ROOMS and ROOMS.index(room) <= ROOMS.index(own_room)


@pytest.mark.parametrize(("own_room", "room", "expected"), [
    ("cli", "math", True), ("data", "data", True), ("math", "data", False), ("federation", "cli", False),
    ("cli", "no_room", False)])
def test_the_check_sees_a_wrong_arrow(own_room, room, expected):
    assert may_import(own_room, room) == expected


def test_the_core_names_no_module_of_another_part():
    """Strings count too."""
    wrong = [f"{path.relative_to(ROOT)} names {module}" for room in CORE for path in (ROOT / room).rglob("*.py")
             for module in re.findall(r"resolvent\.(?:federation|red_team|cli)\b", path.read_text("utf-8"))]
    assert wrong == []


def test_no_module_imports_the_experiments():
    named = [str(path) for path in ROOT.rglob("*.py") for node in imports_of(path)
             for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
             if name.split(".")[0] == "experiments"]
    assert not named


def test_the_independent_part_imports_nothing_of_the_library():
    wrong = [f"{path.relative_to(ROOT)} imports from {room}" for path in (ROOT / INDEPENDENT).rglob("*.py")
             for room in imported_rooms(path) if room != INDEPENDENT]
    assert wrong == []


def test_the_rewrites_are_a_package_of_their_own():
    """They import nothing of the library, and no name, comment or text of theirs has a word of federations."""
    wrong = []
    for path in PACKAGE.rglob("*"):
        if path.suffix in (".py", ".md"):
            words = re.findall(r"\b(resolvent|federat\w*|part(?:y|ies)|servers?|clients?|cohorts?|sites?)\b",
                               path.read_text("utf-8"), re.IGNORECASE)
            wrong += [f"{path.relative_to(PACKAGE)}: {word}" for word in words]
    for path in PACKAGE.rglob("*.py"):
        wrong += [f"{path.relative_to(PACKAGE)} imports from {room}/" for room in imported_rooms(path)]
    assert wrong == []


def test_the_library_uses_few_modules_of_the_rewrites():
    modules = {name for path in ROOT.rglob("*.py") for node in imports_of(path)
               for name in ([a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""])
               if name.partition(".")[0] == PACKAGE.name}
    assert {name.removeprefix("xla_cpu_rewrites").removeprefix(".") for name in modules} == {
        "", "programs", "small_call", "versions"}


def imports_of_upper_floors(room, floors):
    """Each import of a folder or file of a room that does not point to a lower floor, or into the folder itself."""
    floor_of = {name: i for i, floor in enumerate(floors) for name in floor}
    for path in (ROOT / room).rglob("*.py"):
        own = path.relative_to(ROOT / room).with_suffix("").parts[0]
        for node in imports_of(path):
            if own != "__init__" and isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                    f"resolvent.{room}."):
                other = node.module.split(".")[2]
                if own != other and floor_of[other] >= floor_of[own]:
                    yield f"{path.relative_to(ROOT)} imports from {other}"


@pytest.mark.parametrize(("room", "floors"), [("federation", FLOORS), ("simulator", SIMULATOR_FLOORS)])
def test_folders_of_a_room_import_lower_floors_only(room, floors):
    assert list(imports_of_upper_floors(room, floors)) == []


def test_the_check_sees_an_import_of_an_upper_floor():
    assert any("imports from mesh" in wrong for wrong in imports_of_upper_floors("simulator", SIMULATOR_FLOORS[::-1]))


def test_mathematics_has_no_federated_word():
    for path in (ROOT / "math").glob("*.py"):
        code = ast.parse(path.read_text("utf-8"))
        names = {getattr(n, "id", None) or getattr(n, "arg", None) for n in ast.walk(code)}
        assert not names & {"party", "parties", "server", "cohort", "client", "federation"}, path.name


def imported_files(name, path, modules):
    """The files that a file imports; of ``from package import module``: the module."""
    for node in imports_of(path):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        else:
            targets = [f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in modules else node.module
                       for alias in node.names]
        yield from (target for target in targets if target in modules and target != name)


def files_in_circles(imports):
    """What is left when files that import no other file, or that no other file imports, are removed in turn."""
    files = set(imports)
    while True:
        imported = {target for name in files for target in imports[name]}
        ends = {name for name in files if name not in imported or not imports[name] & files}
        if not ends:
            return sorted(files)
        files -= ends


def graph_of(paths):
    modules = {".".join(p.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in paths}
    return {name: set(imported_files(name, path, modules)) for name, path in modules.items()}


def test_files_import_each_other_in_one_direction():
    assert not files_in_circles(graph_of([*ROOT.rglob("*.py"), *PACKAGE.rglob("*.py")]))


def test_the_check_sees_a_circle():
    assert files_in_circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a"}}) == ["b", "c"]


@pytest.mark.when_changed
def test_no_test_imports_another_one():
    """What several tests use is in a module without tests: a test can be moved, and none is imported twice."""
    wrong = []
    for path in sorted(p for folder in ("tests", "experiments/tests") for p in (REPOSITORY / folder).rglob("*.py")):
        names = [name for node in imports_of(path) for name in imported_modules(node)]
        wrong += [f"{path.relative_to(REPOSITORY)} imports {name}" for name in names
                  if any(part.startswith("test_") for part in name.split("."))]
    assert wrong == []


def imported_modules(node):
    """What an import names: modules, and what it takes from them, which can be modules."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module or ''}.{alias.name}" for alias in node.names]


@pytest.mark.parametrize(("line", "names"), [
    ("import algorithms.test_robust", ["algorithms.test_robust"]), ("from test_robust import f", ["test_robust.f"]),
    ("from . import test_robust", [".test_robust"])])
def test_the_check_sees_an_import_of_a_test(line, names):
    (node,) = ast.parse(line).body
    assert imported_modules(node) == names

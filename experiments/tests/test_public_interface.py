"""The experiments use the public interface of the package only: ``import resolvent as rv`` and its namespaces."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import resolvent as rv

ROOT = Path(__file__).parents[1]
NAMESPACES = {name for name in (*rv.__all__, "testing", "extend") if isinstance(getattr(rv, name), ModuleType)}


def public_names(namespace):
    return getattr(rv, namespace).__all__


def wrong_names(source):
    """What a program imports, or reads from the package, that is not public."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.startswith("resolvent")
                        and (alias.name, alias.asname) != ("resolvent", "rv"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "resolvent":
            _, _, namespace = node.module.partition(".")
            if namespace and namespace not in NAMESPACES:
                yield node.module
            else:
                public = public_names(namespace) if namespace else rv.__all__
                yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name not in public)
        elif isinstance(node, ast.Attribute):
            first, *names = ast.unparse(node).split(".")
            if first == "rv" and len(names) == 1 and names[0] not in {*rv.__all__, "testing", "__all__"}:
                yield f"rv.{names[0]}"
            if first == "rv" and len(names) == 2 and names[0] in NAMESPACES and names[1] not in public_names(names[0]):
                yield f"rv.{names[0]}.{names[1]}"


def test_imports_are_public():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    wrong = {str(path.relative_to(ROOT)): names for path in files
             if (names := [*wrong_names(path.read_text(encoding="utf-8"))])}
    assert not wrong


@pytest.mark.parametrize(("source", "expected"), [
    ("import resolvent as rv\nrv.fedavg(rv.solvers.adam(0.1))", []),
    ("from resolvent.errors import InputError", []),
    ("import resolvent", ["resolvent"]),
    ("import resolvent.api as rv", ["resolvent.api"]),
    ("def f():\n    from resolvent.math.tree import dot", ["resolvent.math.tree"]),
    ("from resolvent.errors import _plain", ["resolvent.errors._plain"]),
    ("import resolvent as rv\nrv.simulator", ["rv.simulator"]),
    ("import resolvent as rv\nrv.solvers._steps", ["rv.solvers._steps"]),
])
def test_the_check_sees_what_is_not_public(source, expected):
    assert [*wrong_names(source)] == expected

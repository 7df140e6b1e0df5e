"""The data room imports large packages only in the functions that need them."""

import ast
from pathlib import Path

import resolvent.data

LARGE = {"pandas", "pyarrow", "sklearn", "scipy", "matplotlib"}


def imported_at_the_top(tree):
    """The packages that are imported outside functions and outside ``if TYPE_CHECKING``."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_no_module_of_the_data_room_imports_a_large_package_at_its_top():
    [folder] = resolvent.data.__path__
    for path in sorted(Path(folder).glob("*.py")):
        assert not LARGE & set(imported_at_the_top(ast.parse(path.read_text("utf-8")))), path.name

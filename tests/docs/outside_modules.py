"""Python files outside the package that make the documentation, as modules, and names as files write them."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load(path):
    """A Python file outside the package, as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def plain(name):
    """A name as files may write it: ``geometric_median`` for ``GeometricMedian``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


HOOKS = load("docs/hooks.py")


def name_of(page):
    return str(page.relative_to(ROOT))

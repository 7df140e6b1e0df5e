"""Writes ``catalogue.json``, what ``resolvent list`` prints, from the library: ``python tests/catalogue.py``.

Only the source of a preset comes from its docstring; its other columns follow from the code.
"""

import inspect
import json
import re
from contextlib import suppress
from pathlib import Path

from resolvent.algorithms.combinators.centre_from_sums import CentreFromSums
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.traits import is_personal, is_robust, traffic_of
from resolvent.comparisons.experiment import catalogue
from resolvent.comparisons.experiment.binding import bind, parameters
from resolvent.comparisons.experiment.experiment_file import experiments
from resolvent.comparisons.experiment.registry import registries
from resolvent.comparisons.experiment.yaml_files import read_yaml
from resolvent.errors import InputError
from resolvent.solvers import GD

FILE = Path(catalogue.__file__).with_suffix(".json")
SOLVER = GD(0.1)  # no column depends on the solver, and this one takes the least time to trace


def made():
    """The text of the file: kind -> name -> a line, and the entries of the algorithms, each on a line."""
    kinds = {"experiments": {name: read_yaml(text, name)["title"] for name, text in experiments().items()}}
    for kind, parts in listings().items():
        kinds[kind] = {name: first_line(part) for name, part in parts.items()}
    entries = ",\n".join(json.dumps(entry(*named), ensure_ascii=False) for named in listings()["algorithms"].items())
    modules = {registry.plural: {name: part.__module__ for name, part in registry.functions.items()}
               for registry in registries()}
    return (f'{{"kinds": {json.dumps(kinds, indent=0, ensure_ascii=False)},\n'
            f'"modules": {json.dumps(modules, indent=0)},\n"algorithms": [\n{entries}\n]}}\n')


def listings():
    """All parts by kind. Combinators are a kind of their own here, after the presets."""
    kinds = {}
    for registry in registries():
        kinds[registry.plural] = dict(registry.functions)
        if registry.plural == "algorithms":
            kinds["algorithms"] = {name: f for name, f in registry.functions.items() if not inspect.isclass(f)}
            kinds["combinators"] = {name: f for name, f in registry.functions.items() if inspect.isclass(f)}
    return kinds


def first_line(function):
    """The first line of a function's docstring, without code quotes."""
    return (inspect.getdoc(function) or "").split("\n")[0].replace("``", "")


def references(function):
    """The entries of a docstring's ``References`` section, the main source first. Blank lines separate the entries."""
    section = re.search(r"^References:\n((?:(?:    .*)?\n?)*)", inspect.getdoc(function) or "", re.MULTILINE)
    entries = re.split(r"\n\s*\n", section[1].strip()) if section else []
    return tuple(" ".join(entry.split()) for entry in entries)


def entry(name, preset):
    """The row of a preset at its defaults; where it has none, with a typical part."""
    supplied = frozenset({"solver"})
    parts = {key: str(p.component.registry.typical) for key, p in parameters(preset).items()
             if p.component and p.is_required and key not in supplied}
    algorithm = bind(preset, parts, path=name, supplied=supplied).build(solver=SOLVER)
    traffic = traffic_of(algorithm)
    amounts = {key: {"models": amount.models, "numbers": amount.numbers, "text": str(amount)}
               for key, amount in zip(("keeps", "down", "up"), traffic, strict=True)}
    return {"name": name, "title": first_line(preset), "source": references(preset)[0].rstrip("."), **amounts,
            "phases": len(algorithm.phases), "personal": is_personal(algorithm), "robust": is_robust(algorithm),
            "sums": sums(algorithm), "parts": parts}


def sums(algorithm):
    """Whether the replies can be summed as integers, perhaps those of its robust centre computed from sums."""
    for title, make in (("yes", FixedPointSums), ("CentreFromSums", lambda a: FixedPointSums(CentreFromSums(a)))):
        with suppress(InputError):
            traffic_of(make(algorithm))
            return title
    return "no"


if __name__ == "__main__":
    FILE.write_text(made(), "utf-8")

"""Parts are found by base class and ``__all__``, and every one of them has help and types that a file can hold."""

import inspect
import sys
from collections.abc import Callable
from types import ModuleType

import equinox as eqx
import pytest
from ruamel.yaml import YAML

from catalogue import first_line
from resolvent.aggregators import Aggregator
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.attacks import Attack
from resolvent.comparisons.experiment.binding import bind, parameters
from resolvent.comparisons.experiment.docstrings import help_of
from resolvent.comparisons.experiment.experiment_file import Experiment
from resolvent.comparisons.experiment.file_types import read_setting
from resolvent.comparisons.experiment.registry import Registry, registries, registry_of
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.math.codecs import Codec, Identity
from resolvent.models import Model
from resolvent.participation import Full, Participation
from resolvent.solvers import LocalSolver

FUNCTIONS = {"experiment": Experiment, **{f"{registry.title} {name}": function for registry in registries()
                                          for name, function in registry.functions.items()}}


class Halved(Identity):
    """A codec that this file defines."""

    factor: float = 0.5


class Indescribable(Halved):
    """A codec with an argument that a file cannot hold."""

    make: Callable[[], float] = eqx.field(kw_only=True)


def halved(factor: float) -> Codec:
    """A function that returns a codec."""
    return Halved(factor)


def unresolvable(frame: "NotImported") -> Codec:
    """A function that takes what only a type checker knows."""
    raise AssertionError


@pytest.fixture
def module(monkeypatch):
    """Make a module ``mine`` with these parts in ``__all__``."""
    def made(**parts):
        result = ModuleType("mine")
        vars(result).update(parts)
        result.__all__ = [*parts]
        monkeypatch.setitem(sys.modules, "mine", result)
        return result

    return made


def codecs_of_mine():
    return Registry(("resolvent.math.codecs.Codec",), "codec", "codecs", ("mine",)).functions


def test_what_a_module_lists_is_a_part(module):
    listed = module(Halved=Halved, halved=halved)
    assert dict(codecs_of_mine()) == {"Halved": Halved, "halved": halved}
    listed.unlisted = Indescribable
    assert set(codecs_of_mine()) == {"Halved", "halved"}


def test_bases_other_kinds_and_what_a_file_cannot_hold_are_not_parts(module):
    module(Codec=Codec, Halved=Halved, Indescribable=Indescribable, unresolvable=unresolvable, Full=Full,
           first_line=first_line, number=3)
    # Halved is a base of Indescribable, whose argument is a function.
    assert not codecs_of_mine()
    assert "from_flax" not in registry_of(Model).functions
    assert "from_frame" not in registry_of(FederatedData).functions


@pytest.mark.parametrize(("kind", "name", "written"), [
    (Participation, "BySize", ["BySize", "by_size", "bysize", "Bysize"]), (Attack, "NaN", ["nan", "NaN"]),
    (Codec, "RandK", ["rand_k", "randk", "RandK"]), (LocalSolver, "SGD", ["SGD", "sgd"]),
    (Algorithm, "attacked", ["attacked"]), (Algorithm, "Attacked", ["Attacked", "ATTACKED"])])
def test_spellings_of_one_name(kind, name, written):
    assert [registry_of(kind).name_of(spelling) for spelling in written] == [name] * len(written)


def test_capitals_of_functions_matter():
    assert registry_of(Algorithm).name_of("FedAvg") is None
    assert registry_of(Participation).name_of("by size") is None


def test_simple_parts_are_listed_first():
    assert next(iter(registry_of(LocalSolver).functions)) == "SGD"
    assert next(iter(registry_of(Aggregator).functions)) == "Mean"


def test_defaults_of_a_kind_are_parts_of_it():
    for registry in registries():
        named = {registry.default, registry.typical, registry.number and registry.number[0]} - {None}
        assert named <= set(registry.functions), registry.title


def test_parts_have_a_first_line_and_document_only_what_they_have():
    wrong = []
    for name, function in FUNCTIONS.items():
        line = first_line(function)
        if len(line) <= 10 or not line.endswith("."):
            wrong.append(f"{name}: the first line is {line!r}")
        fields = {field for base in getattr(function, "__mro__", ()) for field in getattr(base, "__annotations__", ())}
        unknown = set(help_of(function)) - fields - set(inspect.signature(function).parameters)
        wrong += [f"{name} describes {unknown}"] if unknown else []
    assert wrong == []


def test_parameters_have_help_and_a_type_that_a_file_can_hold():
    wrong = [f"{name}, {key}: {problem}" for name, function in FUNCTIONS.items()
             for key, parameter in parameters(function).items() for problem in problems_of(function, key, parameter)]
    assert wrong == []
    assert sum(len(parameters(function)) for function in FUNCTIONS.values()) > 700


def problems_of(function, key, parameter):
    """What is wrong with a parameter, and with its default."""
    if not parameter.help:
        yield "the docstring does not describe it"
    elif "``" in parameter.help:
        yield "its help has quotes of the documentation"
    if inspect.signature(function).parameters[key].annotation is inspect.Parameter.empty:
        yield "it has no annotation"
    if parameter.component is None:
        if not parameter.is_required:
            written = YAML(typ="safe").load(write_yaml({key: parameter.default}))[key]
            if read_setting(parameter.type, written, key) != parameter.default:
                yield f"a file reads its default {parameter.default!r} as another value"
        return
    functions = parameter.component.registry.functions
    if isinstance(parameter.default, float):
        part, argument = parameter.component.registry.number  # a number is short for this part
        if getattr(bind(functions[part], {argument: parameter.default}).build(), argument) != parameter.default:
            yield f"the number {parameter.default} is not short for {part}"
    elif not parameter.is_required and parameter.default is not None \
            and bind(functions[parameter.default_part], {}).build() != parameter.default:
        yield "`show` prints its default as another part"


def test_wrong_parameters_are_seen():
    def wrong(first, second: float = 0.5) -> Codec:
        """A function.

        Args:
            first: what it is.
        """
        raise AssertionError

    found = {key: [*problems_of(wrong, key, parameter)] for key, parameter in parameters(wrong).items()}
    assert found == {"first": ["it has no annotation"], "second": ["the docstring does not describe it"]}


def test_what_the_experiment_supplies_is_a_parameter_of_some_part():
    for registry in registries():
        known = {key for function in registry.functions.values() for key in inspect.signature(function).parameters}
        assert registry.supplied <= known


def test_refusal_of_a_function_starts_with_its_path():
    def picky(x: int) -> int:
        raise KeyError(f"no {x}")

    with pytest.raises(InputError, match=r"^here\.there: no 3$"):
        bind(picky, {"x": 3}, path="here.there").build()


def test_defects_are_not_reported_as_wrong_input():
    def broken(x: int) -> int:
        return object().missing

    with pytest.raises(AttributeError):
        bind(broken, {"x": 3}).build()

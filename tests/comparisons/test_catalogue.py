"""The table of algorithms: its computed properties are right, and every docstring has all paragraphs."""

import inspect
import json
from pathlib import Path

import jax.numpy as jnp
import pytest

import resolvent as rv
from catalogue import FILE, first_line, made
from docs.outside_modules import HOOKS
from resolvent.algorithms import presets, traits
from resolvent.comparisons.experiment import catalogue as c
from resolvent.comparisons.experiment.binding import parameters
from resolvent.comparisons.experiment.docstrings import help_of

ROOT = Path(__file__).parents[2]
SOLVER = rv.SGD(0.1, steps=1)


def entries():
    return {entry["name"]: entry for entry in c.catalogue()}


def test_the_file_of_the_package_is_that_of_its_parts():
    """Otherwise write it again: python tests/catalogue.py."""
    assert FILE.read_text("utf-8") == made()


def test_docstrings_have_every_paragraph_and_explain_every_parameter():
    wrong = []
    for name in presets.__all__:
        preset = getattr(presets, name)
        texts, helps = HOOKS.paragraphs(preset), help_of(preset)
        wrong += [f"{name}: {problem}" for problem, is_wrong in {
            "the first line is no sentence": not first_line(preset).endswith("."),
            f"the paragraphs are {[*texts]}": [*texts] != [*HOOKS.PARAGRAPHS],
            "a paragraph is empty": not all(texts.values()),
            f"it explains {[*helps]} of {[*parameters(preset)]}": {*helps} != {*parameters(preset)},
            "an explanation is empty": not all(helps.values())}.items() if is_wrong]
    assert wrong == []


def test_every_preset_has_a_row_with_a_source():
    assert sorted(entries()) == sorted(presets.__all__)
    assert all(entry["source"] and entry["title"] for entry in entries().values())


@pytest.mark.parametrize(("name", "keeps", "down", "up", "phases"), [
    ("local", "1", "-", "-", 1), ("fedavg", "-", "1", "1", 1), ("scaffold", "1", "2", "2", 1),
    ("feddane", "-", "3", "2", 2), ("fedplus_pull", "1", "1 + 1 number", "1", 1),
    ("fedpi", "-", "1 + 1 number", "1", 1),
])
def test_sizes_of_states_messages_and_replies(name, keeps, down, up, phases):
    entry = entries()[name]
    assert ([entry[key]["text"] for key in ("keeps", "down", "up")], entry["phases"]) == ([keeps, down, up], phases)


def test_personal_and_robust():
    for name in ("local", "fedavg_plus", "ditto", "ifca"):
        assert entries()[name]["personal"], name
    for name in ("fedavg", "scaffold", "fedrp", "rfa"):
        assert not entries()[name]["personal"], name
    for name in ("local", "rfa", "coordinate_median", "fedgeomed_plus", "fedcomed_plus"):
        assert entries()[name]["robust"], name
    for name in ("fedavg", "fedavg_plus", "fedadam", "scaffold", "fedpi"):
        assert not entries()[name]["robust"], name
    # Robustness depends on the part, not on its kind.
    assert traits.is_robust(rv.fedplus(SOLVER, rv.penalties.L2Norm()))
    assert not traits.is_robust(rv.fedplus(SOLVER, rv.penalties.SquaredL2()))
    assert traits.is_robust(rv.fedplus_pull(SOLVER, rv.aggregators.CoordinateMedian()))
    assert not traits.is_personal(rv.splitting(SOLVER, decentralised=True, beta=1.5))
    assert not traits.is_personal(rv.splitting(SOLVER, decentralised=True))


def test_amounts_of_any_shape():
    size = traits._MODEL_SIZE

    def amount(*sizes):
        return str(traits.amount_of([jnp.zeros(n) for n in sizes]))

    assert [amount(), amount(5), amount(size), amount(2 * size, 1), amount(size // 2, 3)] == [
        "-", "5 numbers", "1", "2 + 1 number", "1/2 + 3 numbers"]
    assert str(traits.amount_of([jnp.zeros(size, jnp.int8)])) == "1/4"


def test_command_line_prints_it_as_json(call, tmp_path):
    as_json = call("list", "algorithms", "--format", "json", cwd=tmp_path)
    assert json.loads(as_json.out)["algorithms"] == [*entries().values()]
    everything = json.loads(call("list", "--format", "json", cwd=tmp_path).out)
    assert everything["penalties"]["L1"]
    assert sorted(everything["algorithms"]) == sorted(presets.__all__)


def test_the_site_shows_the_same_table_and_sources():
    page = HOOKS.on_page_markdown((ROOT / "docs" / "choosing.md").read_text("utf-8"))
    for name, entry in entries().items():
        if getattr(presets, name).__name__ != name:
            continue  # an alias
        row = next(line for line in page.splitlines() if f"| [`{name}`][" in line)
        computed = [*(entry[key]["text"] for key in ("keeps", "down", "up")), "yes" if entry["personal"] else "no"]
        assert f"| {' | '.join(map(HOOKS.escaped, computed))} |" in row
        assert row.endswith(f"| {entry['sums']} |")
    source = Path(inspect.getsourcefile(type(presets.ditto(SOLVER)))).relative_to(ROOT)
    assert f'--8<-- "{source}"' in (ROOT / "docs" / "research.md").read_text("utf-8").splitlines()

"""The table of algorithms: what it finds out from code is what is so, and every docstring says what it must."""

import importlib.util
import inspect
import json
from functools import cache
from pathlib import Path

import jax.numpy as jnp
import pytest

import resolvent as rv
from resolvent.algorithms import presets
from resolvent.study import catalogue as c
from resolvent.study.components import help_of, parameters

ROOT = Path(__file__).parents[2]
SOLVER = rv.SGD(0.1, steps=1)


@cache
def entries():
    return {entry.name: entry for entry in c.catalogue()}


@pytest.mark.parametrize("name", presets.__all__)
def test_docstring_has_every_paragraph_and_explains_every_parameter(name):
    preset = getattr(presets, name)
    assert c.first_line(preset).endswith(".")
    found = c.paragraphs(preset)
    assert list(found) == list(c.LABELS)
    assert all(found.values())
    assert set(help_of(preset)) == set(parameters(preset))
    assert all(help_of(preset).values())


def test_every_preset_has_a_row_with_a_source():
    assert list(entries()) == presets.__all__
    assert all(entry.source and entry.title for entry in entries().values())


@pytest.mark.parametrize(("name", "keeps", "down", "up", "phases"), [
    ("local", "1", "-", "-", 1), ("fedavg", "-", "1", "1", 1), ("scaffold", "1", "2", "2", 1),
    ("feddane", "-", "3", "2", 2), ("fedplus_pull", "1", "1 + 1 number", "1", 1),
    ("fedpi", "-", "1 + 1 number", "1", 1),
])
def test_what_is_kept_and_travels(name, keeps, down, up, phases):
    entry = entries()[name]
    assert (str(entry.keeps), str(entry.down), str(entry.up), entry.phases) == (keeps, down, up, phases)


def test_personal_and_robust():
    for name in ("local", "fedavg_plus", "ditto"):
        assert entries()[name].personal, name
    for name in ("fedavg", "scaffold", "fedrp", "rfa"):
        assert not entries()[name].personal, name
    for name in ("local", "rfa", "coordinate_median", "fedgeomed_plus", "fedcomed_plus"):
        assert entries()[name].robust, name
    for name in ("fedavg", "fedavg_plus", "fedadam", "scaffold", "fedpi"):
        assert not entries()[name].robust, name
    # Decided by the component that it is built with, not by its kind.
    assert c.robust(rv.fedplus(SOLVER, rv.penalties.L2Norm()))
    assert not c.robust(rv.fedplus(SOLVER, rv.penalties.SquaredL2()))
    assert c.robust(rv.fedplus_pull(SOLVER, rv.aggregators.CoordinateMedian()))
    assert not c.personal_model(rv.splitting(SOLVER, decentralised=True, beta=1.5))
    assert not c.personal_model(rv.splitting(SOLVER, decentralised=True))


def test_amounts_of_any_shape():
    size = c._LARGE

    def amount(*sizes):
        return str(c._amount([jnp.zeros(n) for n in sizes]))

    assert [amount(), amount(5), amount(size), amount(2 * size, 1), amount(size // 2, 3)] == [
        "-", "5 numbers", "1", "2 + 1 number", "1/2 + 3 numbers"]
    assert str(c._amount([jnp.zeros(size, jnp.int8)])) == "1/4"


def test_command_line_prints_it_for_people_and_programs(call, tmp_path):
    shown = call("list", "algorithms", cwd=tmp_path)
    head, rows = c.table(list(entries().values()))
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert shown.code == 0
    assert all(" ".join(row) in lines for row in (head, *rows))
    asked = call("list", "algorithms", "--json", cwd=tmp_path)
    assert json.loads(asked.out)["algorithms"] == [json.loads(json.dumps(e.record())) for e in entries().values()]
    everything = json.loads(call("list", "--json", cwd=tmp_path).out)
    assert everything["penalties"]["L1"]
    assert list(everything["algorithms"]) == presets.__all__


def test_the_site_shows_the_same_table_and_sources():
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.on_page_markdown((ROOT / "docs" / "algorithms.md").read_text("utf-8"))
    for name, entry in entries().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| [`{name}`]"))
        assert row.endswith(f"| {hooks.escaped(entry.source)} |")
    page = hooks.on_page_markdown((ROOT / "docs" / "ditto.md").read_text("utf-8"))
    assert inspect.getsource(presets.ditto) in page
    row = next(block for block in page.split("```py\n") if block.startswith('    "ditto"')).splitlines()[0]
    assert row in (ROOT / "tests" / "algorithms" / "test_contract.py").read_text("utf-8").splitlines()
    shown = hooks.labelled(inspect.getdoc(presets.scaffold))
    assert "\n**Update.** w_k = gradient steps on f_k + &lt;c - c_k, .>" in shown
    assert hooks.labelled("No label: <b>") == "No label: <b>"

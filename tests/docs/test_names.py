"""Names in the documentation exist, and every part of the library is on a reference page."""

import re
from collections import Counter
from functools import cache, reduce
from types import ModuleType

import resolvent as rv
from catalogue import listings
from docs.outside_modules import HOOKS, ROOT, name_of, plain
from experiments import portfolio
from resolvent.algorithms import presets
from resolvent.comparisons.experiment.binding import parameters
from resolvent.comparisons.experiment.experiment_file import Experiment, experiments
from resolvent.comparisons.experiment.registry import registries

# Without the changelog, which names what is gone.
GUIDES = [ROOT / name for name in ("README.md", "docs/choosing.md", "docs/theory.md")]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REFERENCE = sorted((ROOT / "docs" / "api").glob("*.md"))
# Names in the guides that are neither parts of experiment files nor at the top level: commands, values, columns, types.
WORDS = {"list", "report", "reproduce", "run", "show", "RESOLVENT_BASE", "RESOLVENT_DATA",
         "RESOLVENT_REWRITES", "RESOLVENT_SMALL_CALLS", "XLA_CPU_REWRITES", "XLA_CPU_SMALL_CALLS", "PYTHONPATH",
         "xla_cpu_rewrites", "TypeError",
         "replace_slow_operations", "check_half_precision", "drop", "FO", "HF", "exact", "from_equinox",
         "from_flax", "centre_iterations", "centre_residual", "finds_the_optimum", "shares", "Anchor",
         "ModelAggregation", "FedPlus", "Oracle", "measured", "resolvent", "make", "everybody"}


def spans(page):
    """Code in backticks; fenced blocks are left out."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@cache
def known():
    """Everything that an experiment file can name or set, everything at the top level and in its namespaces."""
    functions = [f for kind in listings().values() for f in kind.values()]
    functions += [f for name in portfolio.__all__ if callable(f := getattr(portfolio, name))]  # of the experiments
    settings = {p for f in (*functions, Experiment, rv.simulate) for p in parameters(f)}
    names = {name for kind in listings().values() for name in kind} | set(dir(rv)) | set(portfolio.__all__)
    names |= {name for public in (*rv.__all__, "errors") if isinstance(getattr(rv, public), ModuleType)
              for name in getattr(rv, public).__all__}
    return WORDS | settings | names | {plain(name) for name in names} | set(experiments())


def test_names_in_guides_exist():
    """A name alone, or one that is called or set: `fedpi`, `ErgodicAveraging(algorithm, weight)`, `lam: 0`."""
    unknown = []
    for page in GUIDES:
        names = [m[1] for m in (re.match(r"([A-Za-z_]\w*)(?:$|\(|: |=)", span) for span in spans(page)) if m]
        assert len(names) > 5, page
        unknown += [f"{name_of(page)}: {name}" for name in sorted(set(names) - known())]
    assert unknown == []


def exists(path):
    try:
        reduce(getattr, path[1:].split("."), rv)
    except AttributeError:
        return False
    return True


def test_names_after_rv_exist():
    assert exists(".models.mlp")
    assert not exists(".models.no_such_model")
    assert [f"{name_of(page)}: rv{path}" for page in PAGES
            for path in re.findall(r"\brv((?:\.[A-Za-z_]\w*)+)", page.read_text("utf-8")) if not exists(path)] == []


def test_names_in_the_glossary_are_in_the_code():
    code = "\n".join(path.read_text("utf-8") for folder in ("src", "experiments")
                     for path in (ROOT / folder).rglob("*.py"))
    names = {name for span in spans(ROOT / "docs" / "glossary.md") for name in re.findall(r"[A-Za-z_]\w*", span)}
    assert len(names) > 100
    assert not sorted(names - set(re.findall(r"\w+", code)))


def test_every_preset_is_named():
    """In the tables of the page on choosing, which the build of the site makes."""
    assert HOOKS.TABLE in (ROOT / "docs" / "choosing.md").read_text("utf-8")
    assert not sorted(set(presets.__all__) - {"flix"} - set(re.findall(r"\[`(\w+)`\]", HOOKS.table())))


def test_a_cell_of_a_table_has_the_head_of_its_column():
    """A phone shows the cells below each other."""
    table = ('<table><tr><th>a <b>&lt;1</b></th><th align="left">b</th></tr>'
             '<tr><td>1</td><td class="x">2</td></tr></table>')
    assert HOOKS.on_page_content(f"<td>{table}") == "<td>" + table.replace(
        "<td>1", '<td data-label="a &lt;1">1').replace("<td class", '<td data-label="b" class')


def test_a_screen_reader_finds_a_name_for_each_part_of_a_page():
    """The theme names menus by labels without text, the search not at all, and an empty corner of a table is a head."""
    menu = ('<nav class="md-nav" data-md-level="2" aria-labelledby="__nav_5_6_label" aria-expanded="true">\n'
            '<label class="md-nav__title" for="__nav_5_6">\n<span class="md-nav__icon md-icon"></span>\n'
            '  Reference\n</label>')
    page = HOOKS.on_post_page(f'<div data-md-component="search" role="dialog">{menu}')
    assert page == '<div data-md-component="search" role="dialog" aria-label="Search">' + menu.replace(
        'aria-labelledby="__nav_5_6_label"', 'aria-label="Reference"')
    assert "<td></td><th>a</th>" in HOOKS.on_page_content("<table><tr><th></th><th>a</th></tr></table>")


def test_every_combinator_is_named():
    index = set(re.findall(r"\w+", " ".join(spans(ROOT / "docs/api/index.md"))))
    assert not sorted(set(listings()["combinators"]) - index)


def test_every_part_is_on_one_reference_page():
    count = Counter(path for page in REFERENCE for match in HOOKS.REFERENCE.finditer(page.read_text("utf-8"))
                    for path in HOOKS.referenced(match))
    assert not [path for path, number in count.items() if number > 1]
    parts = [part for registry in registries() for part in registry.functions.values()]
    assert not sorted({f"{part.__module__}.{part.__qualname__}" for part in parts} - set(count))


def test_families_list_every_preset_and_begin_with_fedavg():
    names = [name for family in HOOKS.families().values() for name in family]
    assert names[0] == "fedavg"
    assert sorted(names) == sorted(set(presets.__all__) - {"flix"})  # flix is fedmix

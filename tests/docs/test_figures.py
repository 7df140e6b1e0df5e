"""Numbers and tables of the pages are those of the committed results, and so are the statements about them."""

import copy
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import resolvent
from docs.outside_modules import HOOKS, load, plain

ROOT = Path(__file__).parents[2]
figures = load("benchmarks/figures.py")
ADVICE, DEFENCES = map(figures.read, ("advice", "defences"))


def page(name):
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def test_every_page_shows_the_values_of_its_files():
    """If this fails: python benchmarks/figures.py."""
    texts = {path: path.read_text("utf-8") for path in figures.pages()}
    marked = {path: text for path, text in texts.items() if figures.MARKED.search(text)}
    assert len(marked) > 12
    assert [path.name for path, text in marked.items() if figures.filled(text) != text] == []
    assert [path.name for path, text in texts.items()  # a mark without its other half
            if text.count("<!-- figure:") != len(figures.MARKED.findall(text))
            or text.count("<!-- end -->") != len(figures.MARKED.findall(text))] == []
    assert [match["mark"] for text in marked.values() for match in figures.MARKED.finditer(text)  # it ends a paragraph
            if "\n" not in match["value"] and text[match.start() - 1] == "\n"] == []


def test_a_changed_result_changes_the_page(monkeypatch):
    changed = copy.deepcopy(figures.read("federation_faults")) | {"runs with another result": 2}
    read = figures.read
    monkeypatch.setattr(figures, "read", lambda name: changed if name == "federation_faults" else read(name))
    table = (ROOT / "benchmarks" / "release.md").read_text("utf-8")
    assert "; 2 runs ended with another result" in figures.filled(table)


def test_the_site_has_the_tables_without_their_marks():
    tables = (ROOT / "benchmarks" / "defences.md").read_text("utf-8")
    shown = HOOKS.on_page_markdown(page("defences") + tables)
    assert figures.defences(0.4) in shown
    assert "<!-- figure" not in shown
    assert "<!-- end" not in shown
    for row in DEFENCES["rows"]:
        assert shown.count(f"| `{row['method']}` |") == sum(row["method"] == other["method"] for other in (
            *DEFENCES["rows"], *DEFENCES["apart"]))


def test_no_row_of_a_table_is_lost():
    """Rows that are looked up by their names."""
    assert figures.normalisations().count("\n") == 1 + 6
    assert figures.release().count("\n") == 1 + 8


def test_the_readme_of_the_benchmarks_names_every_script_and_file():
    """What no page needs is not kept."""
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text("utf-8")
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__main__.py")}
    scripts = packages | {path.name for path in folder.glob("*.py")}
    named = set(re.findall(r"`([a-z_]+\.py|[a-z_]+/)`", text))
    assert named == scripts
    results = {path.name for path in folder.glob("*.json")}
    of_scripts = {name.removesuffix(".py").removesuffix("/") + ".json" for name in named}
    assert results - of_scripts - set(re.findall(r"`([\w-]+\.json)`", text)) == set()


def test_every_figure_of_the_release_has_a_command():
    commands = re.findall(r"\| `([^`]+)` \|$", figures.release(), re.MULTILINE)
    assert len(commands) == 8
    assert all(command.startswith(("python ", "resolvent ")) for command in commands)


def test_the_version_is_the_same_everywhere():
    """In the package, the citation, the changelog's newest release and the footer of the site."""
    version = resolvent.__version__
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    (name, date), *_ = re.findall(r"^## \[(\d[\d.]*)\] - ([\d-]+)$", changelog, re.MULTILINE)
    assert name == version
    assert f"\nversion: {version}\ndate-released: {date}\n" in citation
    assert HOOKS.on_config(SimpleNamespace()).copyright == f"Resolvent {version}"


# Advice.


def test_sites_that_are_told_to_join_lose_seldom_and_the_page_names_every_aim_that_is_missed():
    cells = ADVICE["cells"]
    assert sum(cell["lose_joined"] for cell in cells) <= 0.04 * sum(cell["lose"] for cell in cells)
    reversed_ = [cell for cell in cells if "reversed" in cell["cell"] and "feature" not in cell["cell"]]
    assert len(reversed_) >= 14
    assert all(cell["odd_joined"] <= 0.03 for cell in reversed_ if "half" not in cell["cell"])
    table = (ROOT / "benchmarks" / "advice.md").read_text("utf-8")
    for cell in cells:
        assert f"| {cell['cell']} |" in table


# Defences.

ALL_LOSSES = {(plain(row["method"]), row["malicious"], attack): row["none"] - row[attack]
              for row in DEFENCES["rows"] for attack in row if attack not in ("method", "malicious", "none")}
LOSSES = {key: loss for key, loss in ALL_LOSSES.items() if key[2] != "adaptive"}
PLUS = {"fedavg_plus", "fedgeomed_plus", "fedcomed_plus"}
METHODS = {method for method, _, _ in LOSSES} - {"local"}
ATTACKS = {"NaN": "NaN", "Gaussian": "Gaussian", "SignFlip": "sign flip", "LabelFlip": "label flip", "ALIE": "ALIE",
           "IPM": "IPM", "Mimic": "mimic", "MinMax": "min-max"}
KNOWN = {"Adaptive": "adaptive"}  # knows the aggregator
MIXING = {"mixing", "momentum of mixing"}
# Differences of printed numbers, which have one decimal.
TOLERANCE = DEFENCES["tolerance"] + 1e-6


def named(cell):
    """The methods that a cell of the table recommends."""
    cell, _, excluded = cell.partition(" but ")
    methods = set(re.findall(r"`(\w+)`", cell)) | (PLUS if "Fed+" in cell else set())
    methods |= {"momentum of mixing"} if "momentum of mixing" in cell else set()
    if "any method" in cell:
        methods |= METHODS
    methods |= METHODS - PLUS - {"fedavg"} if "any robust method" in cell else set()
    return methods - set(re.findall(r"`(\w+)`", excluded))


def test_recommended_methods_lose_at_most_two_points():
    section = page("defences").split("## Which defence by threat")[1].split("With 20 % malicious parties every")[0]
    rows = [re.findall(r"[^|]+", line) for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == len(ATTACKS | KNOWN) + 1
    lost = {}
    for threat, *cells in rows:
        attacks = [(ATTACKS | KNOWN)[name] for name in re.findall(r"`(\w+)`", threat)] or list(ATTACKS.values())
        for share, cell in zip((0.2, 0.4), cells, strict=False):
            for method in named(cell):
                lost[threat, share, method] = max(ALL_LOSSES[method, share, attack] for attack in attacks)
    assert {key: loss for key, loss in lost.items() if loss > TOLERANCE} == {}


def test_statements_about_all_methods():
    shared = METHODS - PLUS
    assert max(loss for (method, share, _), loss in ALL_LOSSES.items()
               if share == 0.2 and method not in {"fedavg", "fedavg_plus", "krum"}) <= 2.2 + 1e-6
    assert all(max(LOSSES[method, 0.4, attack] for attack in ATTACKS.values()) > TOLERANCE
               for method in shared - {"momentum of mixing"})
    assert max(loss for (method, _, _), loss in LOSSES.items() if method == "momentum of mixing") <= TOLERANCE
    assert max(loss for (method, _, _), loss in LOSSES.items() if method in MIXING) <= 3.7 + 1e-6
    assert max(loss for (method, _, _), loss in LOSSES.items() if method in PLUS) <= 5.5
    worst = sorted(shared, key=lambda method: LOSSES[method, 0.4, "IPM"])[-3:]
    assert set(worst) == {"krum", "multi_krum", "bulyan"}


def test_statements_about_an_attacker_who_knows_the_aggregator():
    known = {method: loss for (method, share, attack), loss in ALL_LOSSES.items()
             if (share, attack) == (0.4, "adaptive")}
    assert {method for method in METHODS - PLUS if known[method] <= TOLERANCE} == {"centred_clipping"}
    assert all(loss == pytest.approx(known[method], abs=0.06) for method, loss in {
        "momentum of mixing": 3.1, "norm_bound": 2.1, "centred_clipping": 1.3}.items())
    accuracy = {(plain(row["method"]), row["malicious"]): row["adaptive"] for row in DEFENCES["rows"]}
    assert accuracy["krum", 0.4] < 2.5
    assert max(accuracy["bulyan", 0.4], accuracy["fedavg_plus", 0.2], accuracy["fedavg_plus", 0.4]) == 0
    assert all(2 < known[method] < 5.5 for method in PLUS - {"fedavg_plus"})


def test_interpolation_of_mixing_is_nowhere_more_than_a_point_below_training_alone():
    alone, row = (next(row for row in DEFENCES["apart"] if row["method"] == name)
                  for name in ("local", "interpolation of Mixing"))
    measured = set(row) - {"method", "malicious"}
    assert {"none", "sign flip", "ALIE", "IPM", "Gaussian"} <= measured
    assert min(row[column] for column in measured) >= alone["none"] - DEFENCES["tolerance_alone"]


# Tables.


def test_what_the_page_says_of_the_best_methods_on_the_six_tables():
    tables = {row["table"]: row for row in figures.read("tables")["tables"]}
    best = {name: min((m for m in table["methods"]), key=lambda m: m["score"][0]) for name, table in tables.items()}
    trees = {name for name, method in best.items() if method["method"].startswith(("histogram", "XGBoost"))}
    assert trees == {"randhie", "wine", "penguins"}
    assert all(best[name]["gain over the chosen"][1] < 0 for name in trees)
    methods = {name: {m["method"]: m for m in table["methods"]} for name, table in tables.items()}
    assert all(methods["actg175"][f"{tree}, pooled"]["gain over the chosen"][2] < 0
               for tree in ("histogram boosting", "XGBoost"))
    assert {name: table["chosen"] for name, table in tables.items()} == dict.fromkeys(tables, "FedAvg") | {
        "wine": "robust"}
    assert all(methods[name]["FedAvg"]["score"][0] < methods[name]["robust"]["score"][0] for name in tables)
    assert methods["actg175"]["robust"]["gain over the chosen"][2] < 0
    low, high = methods["wine"]["FedAvg"]["gain over the chosen"][1:]
    assert low < 0 < high

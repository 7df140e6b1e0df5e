"""experiments/papers.md: every item of the papers, every reproduction and result has a row, and every link leads on."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from experiments.claims import NOT_DECIDED, VERDICTS
from experiments.reproduction import reproductions
from experiments.results import COLUMNS_OF_COUNTS, shown_records, verdict_counts

ROOT = Path(__file__).parents[2]
PAGE, README = ((ROOT / "experiments" / name).read_text(encoding="utf-8") for name in ("papers.md", "README.md"))
RESULTS = ROOT / "experiments" / "results"
ROWS = [[cell.strip() for cell in line.strip("| \n").split(" | ")]
        for line in PAGE.splitlines()
        if line.startswith("| ") and not line.startswith("| item")]


def items(kind, *numbers):
    return [f"{kind} {number}" for number in numbers]


NUMBERED = {  # by paper: what it numbers
    "Li et al., FedProx": [*items("Figure", *range(1, 13)), "Table 1", *items("Theorem", 4, 6, 11),
                           *items("Corollary", 7, 9, 10), *items("Remark", 5, 8), *items("Algorithm", 1, 2)],
    "Kundu et al., Fed+ (newest)": [*items("Figure", 1, 2, 3, 4), *items("Table", 1, 2), *items("Proposition", 1, 2),
                                    *items("Theorem", 1, 2), "Corollary 1", "Lemma 1"],
    "Yu et al., Fed+ (first)": [*items("Figure", 1, 2, 3), "Table 1", *items("Proposition", 1, 2, 3, 4),
                                *items("Theorem", 1, 2), "Corollary 1", "Lemma 1"],
    "Malekmohammadi et al., operator splitting": [
        *items("Figure", *range(1, 13), 16), "Figures 13, 14, 15", "Tables 2 and 3", *items("Theorem", *range(1, 8)),
        *items("Algorithm", 1, 2), "Lemma 1", "Example 1"],
}


@pytest.mark.parametrize("paper", NUMBERED)
def test_every_numbered_item_of_a_paper_has_a_row(paper):
    section = PAGE.split(f"\n## {paper}\n")[1].split("\n## ")[0]
    named = [line.strip("| ").split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    assert [item for item in NUMBERED[paper] if item not in named] == []


def test_a_row_says_what_was_done_and_where():
    for item, _, status, evidence in ROWS:
        files = re.findall(r"`(benchmarks/[\w/]+\.json)`", evidence)
        assert all((ROOT / file).is_file() for file in files), item
        links = bool(files or re.search(r"\]\((results/README\.md#|reference/README\.md)", evidence))
        tests = "::test_" in evidence
        assert {"run": links, "tested": tests, "not run": evidence and not links and not tests}[status], item


def test_every_result_and_reproduction_has_a_row():
    linked = set(re.findall(r"\]\(results/README\.md#([\w-]+)\)", PAGE))
    assert linked == set(shown_records(RESULTS))
    named = {stem.removesuffix("-quick").removesuffix("-middle") for stem in linked}
    named |= set(re.findall(r"`([\w-]+)`", PAGE))
    assert set(reproductions()) <= named


@cache
def functions(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)}


def test_every_test_that_the_page_names_exists():
    names = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)
    assert len(names) == PAGE.count("::test_") > 60
    assert [f"{path}::{name}" for path, name in names if name not in functions(path)] == []


def test_counts_of_verdicts_are_those_of_the_results():
    records = list(shown_records(RESULTS).values())
    rows = verdict_counts(records)
    claims = [claim for record in records for claim in record["claims"]]
    own_verdicts = Counter(claim["verdict"] for claim in claims if not claim["ours"])
    ours = sum(claim["ours"] for claim in claims)
    assert rows[-1] == ("all", *(own_verdicts[verdict] for verdict in (*VERDICTS, NOT_DECIDED)), ours)
    assert [sum(column) for column in zip(*(row[1:] for row in rows[:-1]), strict=True)] == [*rows[-1][1:]]
    assert f"| {' | '.join(COLUMNS_OF_COUNTS)} |" in README
    assert f"| {' | '.join(map(str, rows[-1]))} |" in README

"""The cards of claims: every claim and number is on the page, and what is drawn is what the numbers say."""

import importlib.util
import re
from pathlib import Path

import pytest

from experiments.results import (
    ClaimNumber,
    StatedClaim,
    StatedReading,
    read_records,
    shown_records,
    stated_claims,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "experiments" / "results"
SPEC = importlib.util.spec_from_file_location("claims", ROOT / "docs" / "claims.py")
CLAIMS = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(CLAIMS)


def test_the_page_has_a_card_for_each_claim_and_a_line_for_each_number():
    page = CLAIMS.figures()
    claims = [claim for record in read_records(RESULTS).values() for claim in stated_claims(record)]
    important, of_figures = page.split("## All figures")
    assert important.count('<section class="claim ') == sum(
        bool(claim.headline) for record in shown_records(RESULTS).values()
        for claim in stated_claims(record)) > 0
    assert of_figures.count('<section class="claim ') == len(claims) > 300
    assert of_figures.count('<li class="') == sum(
        len(reading.numbers) for claim in claims for reading in claim.readings)
    assert not re.search(r"<section.*\n\n.*</section>", page)  # Markdown would end the block
    for position in re.findall(r"(?:left|width):([\d.-]+)%", page):
        assert 0 <= float(position) <= 100


def numbers(*means, std=0.1, as_claimed=2):
    return [ClaimNumber(f"m{i}", mean, std, as_claimed, 2, {}) for i, mean in enumerate(means)]


def claim(*readings, says="s", source="our claim", verdict="holds in part", details=""):
    return CLAIMS.card(StatedClaim(says, source, verdict, details, [StatedReading(*reading) for reading in readings]))


def positions(card, part):
    return [float(p) for p in re.findall(rf'class="{part}" style="left:([\d.]+)%', card)]


def test_dots_lie_on_the_side_of_the_threshold_that_their_numbers_have():
    card = claim(("", numbers(-0.5, 0.2, 0.9), [0.3]), says="a < b & c", details="borderline")
    (threshold,) = set(positions(card, "threshold"))
    below, near, above = positions(card, "mean")
    assert below < near < threshold < above
    assert "<p>a &lt; b &amp; c</p>" in card
    assert "holds in part, borderline" in card
    assert "our claim" in card


def test_a_card_of_many_numbers_hides_those_after_the_first_and_says_how_many_are_as_claimed():
    many = [*numbers(*range(5)), *numbers(7, as_claimed=1)]
    card = claim(("", many, []))
    assert "<summary>3 more numbers; 5 of 6 as claimed in every seed</summary>" in card
    assert card.count('class="some"') == 1
    assert "(as claimed in 1 of 2 seeds)" in card


@pytest.mark.parametrize(("means", "std"), [((float("inf"), 1.0), 0.0), ((2.0,), None), ((0.0,), 0.0)])
def test_infinite_single_and_equal_numbers_are_drawn(means, std):
    card = claim(("", numbers(*means, std=std), []))
    assert len(positions(card, "mean")) == len(means)
    assert "inf" not in card


def test_each_reading_has_its_choices_and_its_own_scale_and_a_number_has_its_parts():
    of_ratio = ClaimNumber("ratio", 4.0, None, 1, 1, {"FedAvg": 0.8, "RFA": 0.2})
    card = claim(("sum", [of_ratio], [2.0]), ("mean", numbers(400.0, 500.0), [450.0]))
    assert "<em>sum</em>: ratio: <b>4</b> (FedAvg 0.8; RFA 0.2)" in card
    assert card.count("<em>mean</em>: ") == 2
    assert positions(card, "threshold") == [2.0, pytest.approx(50), pytest.approx(50)]


def test_positive_numbers_of_different_magnitudes_have_a_logarithmic_scale():
    position = CLAIMS.scale([1e-27, 1e-3, 1.0])
    assert position(1e-3) == pytest.approx(2 + 96 * 24 / 27)
    assert CLAIMS.scale([-1, 0, 100])(0) == pytest.approx(2 + 96 / 101)

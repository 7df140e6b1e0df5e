"""The report as text: escaped, self-contained, and the same for the same files."""

import json
import re
import subprocess
import sys
import textwrap
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import nightly
from resolvent.comparisons.judgement.wording import advice_of, reason_text
from resolvent.comparisons.pages import page_colours, svg_of
from resolvent.comparisons.runs import figures
from resolvent.comparisons.runs.first_screen import first_screen
from resolvent.comparisons.runs.record import read_record
from resolvent.comparisons.runs.report import redraw_report
from resolvent.simulator.record.plots import new_figure

KINDS = ["a run", "hostile names", "all diverged", "one party"]
NIGHTLY = ["many parties", "diverged", "without local training", "seventeen methods"]
TAGS = {"html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p", "em", "span", "i", "div", "table",
        "ol", "li", "small", "br", "b", "u", "thead", "tbody", "tr", "th", "td", "figure", "details", "summary", "pre",
        "script"}


@pytest.fixture(scope="module", autouse=True)
def drawing():
    """The tests of this file read the pictures."""


def test_letters_that_matplotlib_has_no_glyph_for_are_text_in_a_picture():
    with page_colours():
        figure, axes = new_figure()
        axes.set_xlabel("東京")
    assert "東京" in svg_of(figure, "Sites")  # a warning would be an error here


class Page(HTMLParser):
    """The tags, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", "svg" in self.open, data.strip()))

    def texts_of(self, tag, in_svg=False):
        return [text for t, svg, text in self.texts if t == tag and svg == in_svg and text]


@pytest.fixture(params=[*KINDS, *(pytest.param(kind, marks=pytest.mark.nightly) for kind in NIGHTLY)])
def folder(request, reports):
    return reports[request.param]


def read(folder):
    return (folder / "report.html").read_text("utf-8"), read_record(folder).plain()


@pytest.mark.when_changed
@nightly.parametrize("kind", [*KINDS, *NIGHTLY])
def test_same_files_give_the_same_bytes(kind, reports):
    folder = reports[kind]
    first = (folder / "report.html").read_bytes()
    redraw_report(folder)
    assert (folder / "report.html").read_bytes() == first
    assert [p.name for p in folder.iterdir() if "partial" in p.name] == []


@pytest.mark.nightly
def test_same_files_give_the_same_bytes_in_another_process(reports):
    folder = reports["hostile names"]
    first = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    done = subprocess.run([sys.executable, "-m", "resolvent.cli", "show", str(folder), "--redraw"], capture_output=True,
                          text=True, timeout=600, check=True)
    assert done.stdout == f"Report: {folder / 'report.html'}\n"
    assert (folder / "report.html").read_bytes() == first


@pytest.mark.when_changed
def test_page_has_only_known_tags(folder):
    page = Page(read(folder)[0])
    outside = {tag for tag, _ in page.tags} - {"svg"}
    drawn = {"defs", "g", "path", "use", "text", "clippath", "rect", "metadata", "rdf:rdf", "cc:work", "dc:type",
             "dc:format", "dc:date", "dc:creator", "cc:agent", "dc:title"}
    assert outside <= TAGS | drawn
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "summary"}]
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)


@pytest.mark.when_changed
def test_page_loads_nothing(folder):
    page = Page(read(folder)[0])
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href", "action", "data", "srcset"):
                assert value.startswith("#"), (tag, name, value)
    assert not re.search(r"@import|url\((?!#)", "".join(page.texts_of("style")))


def test_ids_are_unique_and_references_exist(folder):
    text, _ = read(folder)
    page = Page(text)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = {value[1:] for _, attributes in page.tags for name, value in attributes.items()
                  if name.endswith("href")}
    references |= {m for _, attributes in page.tags for name in ("clip-path", "fill", "mask", "filter")
                   for m in re.findall(r"^url\(#(.*)\)$", attributes.get(name) or "")}
    assert references <= set(ids)
    assert references


def test_pictures_are_xml_with_a_title_and_take_the_text_colour(folder):
    text, summary = read(folder)
    pictures = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(pictures) == text.count("<figure") >= 1 + len(summary["methods"])
    for picture in pictures:
        root = ElementTree.fromstring(picture)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert root.get("width") is None
        assert root.get("height") is None
        assert root.get("viewBox")
        colours = {value for e in root.iter() for value in re.findall(r"(?:fill|stroke): ([^;]+)", e.get("style", ""))}
        assert "currentColor" in colours
        assert not colours & {"#123456", "black", "#000000", "#000"}


def test_summary_in_the_page_is_the_summary(folder):
    text, summary = read(folder)
    inside = re.search(r'<script type="application/json" id="summary">(.*?)</script>', text, re.DOTALL)[1]
    assert "<" not in inside
    assert ">" not in inside
    assert json.loads(inside) == summary


def test_table_has_the_scores(folder):
    text, summary = read(folder)
    rows = re.findall(r"<tr data-method.*?</tr>", text, re.DOTALL)
    assert len(rows) == len(summary["methods"]) + (summary.get("baseline") is not None)
    for row, (name, method) in zip(rows, summary["methods"].items(), strict=False):
        page = Page(f"<table>{row}</table>")
        assert page.texts_of("span") == [f"{name} (untuned)" if method.get("is_untuned") else name]
        cells = page.texts_of("td")
        final = method["final"]
        for cell, column in zip(cells, ("mean", "p10", "worst", "global mean", "global p10", "global worst"),
                                strict=False):
            value = final[column]
            missing = "–" if column.startswith("global") else "diverged"
            percent = summary["score"] == "accuracy"
            assert cell == (missing if value is None else f"{100 * value:.1f}%" if percent else f"{value:.4g}")
        if summary["alone"] is not None:
            others = "–" if name == summary["alone"] else f"{final['better']} / {final['level']} / {final['worse']}"
            assert cells[6:] == [others]


def test_names_are_shown_unchanged(reports, hostile):
    text, summary = read(reports["hostile names"])
    page = Page(text)
    spans, notes = page.texts_of("span"), page.texts_of("p")
    drawn = page.texts_of("text", in_svg=True)
    labels = [attributes.get("aria-label", "") for tag, attributes in page.tags if tag == "svg"]
    for name in hostile:
        # As a method: scores, cost, head of the gains, two legends; as a party: gains, setting.
        assert sum(span in (name, f"{name} (untuned)") for span in spans) == 7
        assert f"{name}." in notes
        title = name if len(name) < 33 else textwrap.wrap(name, 32)[0]  # the first of two lines
        assert drawn.count(title) == 2  # spread and line panels
        assert f"{name}: test accuracy, spread over parties" in labels
    assert page.texts_of("h1") == page.texts_of("title") == [summary["title"]]
    assert page.texts_of("pre") == [(reports["hostile names"] / "experiment.yaml").read_text().strip()]
    assert "49" not in drawn


def test_gains_are_differences_to_training_alone(reports, finished):
    metrics = pd.read_parquet(finished.folder / "metrics.parquet")
    rows = metrics[(metrics["round"] == 4) & (metrics["metric"] == "accuracy") & (metrics["split"] == "test")]
    values = rows.pivot(index="party", columns="method", values="value")
    text, summary = read(reports["a run"])
    table = re.search(r'<table class="gains cards".*?</table>', text, re.DOTALL)[0]
    page = Page(table)
    methods = ["FedAvg+keep", "FedProx 0", "FedAvg once more"]
    assert page.texts_of("span")[:4] == [*methods, "majority class"]
    cells = re.findall(r'<td[^>]* class="(\w+)" style="--s: [\d.]+">([^<]+)<br><small>\[(.*?), (.*?)\]</small>', table)
    assert len(cells) == 5 * 4
    for number, (side, shown, *ends) in enumerate(cells):
        k, j = divmod(number, 4)
        low, high = (float(end.replace("−", "-")) for end in ends)
        gain = float(shown.replace("−", "-"))
        assert low <= gain <= high
        if j < 3:
            assert gain == pytest.approx(100 * (values.loc[k, methods[j]] - values.loc[k, "alone"]), abs=0.051)
            sign = summary["sites"][k]["gains"][methods[j]][1:]
            assert side == ("gain" if sign[0] > 0 else "loss" if sign[1] < 0 else "level")


def test_decisions_come_first_and_agree_with_the_summary(reports):
    text, _ = read(reports["a run"])
    record = read_record(reports["a run"])
    order = [text.index(f'id="{name}"') for name in ("facts", "finding", "forest", "decisions", "gains", "means",
                                                     "scores")]
    assert order == sorted(order)
    table = re.search(r'<details id="decisions">.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
    for row, site in zip(rows, record.sites, strict=True):
        assert site.name in row
        reason = reason_text(site, record.federation.about)
        assert f'{advice_of(site.advice)}<br><small class="reason">{reason}</small></td>' in row
        assert ('class="few"' in row) == site.has_few_rows == (site.test_rows < 20)


def test_first_screen_says_each_thing_once(reports):
    """The counts, the warnings and the sorted plot agree with the record; no sentence of the page is there twice."""
    text, _ = read(reports["a run"])
    record = read_record(reports["a run"])
    screen = first_screen(record)
    shown = text[:text.index("<details")]
    assert sum(screen.counts.values()) == len(record.advised)
    for answer, number in screen.counts.items():
        assert f"<b>{number}</b>{answer}</span>" in shown
    assert Page(shown).texts_of("li") == list(screen.warnings)
    gains = [float(gain.replace("\N{MINUS SIGN}", "-")) for gain in re.findall(r"<td class=.*?<b>(.*?)</b>", shown)]
    expected = [100 * site.advice.expected.value for site in record.advised]
    assert gains == pytest.approx(sorted(expected, reverse=True), abs=0.051)
    assert shown.count("<em style=") == sum(np.isfinite(site.advice.own.value) for site in record.advised)
    sentences = [sentence for tag in ("p", "li") for paragraph in Page(text).texts_of(tag)
                 for sentence in re.split(r"(?<=[.:]) ", paragraph) if len(sentence) > 20]
    assert len(sentences) == len(set(sentences))


def test_what_is_for_researchers_is_behind_a_fold(reports):
    text, _ = read(reports["a run"])
    fold = re.search(r'<details id="researchers">.*?</details>', text, re.DOTALL)[0]
    assert "Change of a party's model by the aggregation" in fold
    assert "From the personal to the shared model" in fold


def test_where_less_is_better_a_gain_is_less(made):
    folder = made(["alone", "A"], list("abcdef"), alone="alone", score="squared_error")
    text, summary = read(folder)
    cells = re.findall(r'<td[^>]* class="(gain|loss)" style="--s: ([\d.]+)">(.*?)</td>', text)
    assert len(cells) == 6
    final = summary["methods"]["A"]["final"]
    assert sum(side == "gain" for side, _, _ in cells) == final["better"]
    assert all((shown[0] == "+") == (side == "gain") for side, _, shown in cells)
    assert 0 < final["better"] < 6
    assert max(float(strength) for _, strength, _ in cells) == 0.75


def test_diverged_parties_are_losses_and_the_others_keep_their_colours(reports):
    text, _ = read(reports["diverged"])
    cells = re.findall(r'<td[^>]* class="(\w+)" style="--s: ([\d.]+)">(.*?)</td>', text)
    of_a = cells[0::2]
    assert of_a[0::2] == [("loss", "0.75", "−∞")] * 3
    assert all("∞" not in shown for _, _, shown in of_a[1::2])
    assert all(0.15 <= float(strength) <= 0.75 for _, strength, _ in cells)
    assert "nan" not in "".join(Page(text).texts_of("td")).lower()


@pytest.mark.when_changed
def test_more_than_forty_parties_are_drawn_sorted(reports, made):
    text, _ = read(reports["many parties"])
    assert 'id="gains"' not in text
    assert "Gain over training alone, parties sorted" in text
    assert "The first 50 of" not in text
    forty, _ = read(made(["alone", "A"], [f"party {k}" for k in range(40)], alone="alone"))
    assert 'id="gains"' in forty
    assert "parties sorted" not in forty


def test_sorted_gains_rise_and_have_their_method_s_colour():
    gains = pd.DataFrame({"B": [0.3, -0.2, 0.0], "C": [-np.inf, 0.1, 0.2]})
    svg = figures.gain_panel(gains, ["B", "alone", "C"])
    colours = [entry["colour"] for entry in figures.legend(["B", "alone", "C"])]
    paths = {c: re.search(rf'<path d="([^"]*)"[^>]*stroke: {c.lower()}', svg)[1] for c in (colours[0], colours[2])}
    assert colours[1].lower() not in svg
    for path in paths.values():
        heights = [float(y) for _, y in re.findall(r"[ML] ([\d.-]+) ([\d.-]+)", path)]
        assert heights == sorted(heights, reverse=True)  # SVG's y axis points down
        assert len(heights) >= 2


@pytest.mark.when_changed
def test_without_local_training_there_are_no_gains_but_still_the_notes(reports):
    text, summary = read(reports["without local training"])
    assert "Gains and losses" not in text
    assert summary["data"]["notes"] == ["c is an outlier"]
    assert "c is an outlier." in Page(text).texts_of("p")


@pytest.mark.parametrize("higher", [True, False])
def test_thin_line_is_the_worst_party(higher):
    rows = [("A", r, k, "test", "s", float(k + r)) for r in (0, 1, 2) for k in range(5)]
    metrics = pd.DataFrame(rows, columns=["method", "round", "party", "split", "metric", "value"])
    svg, = figures.spread_panels(metrics, ["A"], "s", None, higher_is_better=higher)
    drawn = re.findall(r'<path d="(M[^"]*)" clip-path[^>]*stroke: #0072b2; stroke-width: ([\d.]+)', svg)
    (_, mean), (width, worst) = [(float(w), [float(y) for y in re.findall(r"[ML] [\d.-]+ ([\d.-]+)", d)])
                                 for d, w in drawn]
    assert width == 0.8
    assert len(worst) == 3
    below = [w > m for w, m in zip(worst, mean, strict=True)]  # further down the page
    assert below == [higher] * 3


def test_pictures_of_one_page_have_different_ids():
    rows = [("A", r, k, "test", "s", float(k + r)) for r in (0, 1) for k in range(2)]
    rows += [("B", *row[1:]) for row in rows]
    metrics = pd.DataFrame(rows, columns=["method", "round", "party", "split", "metric", "value"])
    first, second = figures.spread_panels(metrics, ["A", "B"], "s", None)
    ids = [set(re.findall(r'\bid="([^"]*)"', svg)) for svg in (first, second)]
    assert ids[0]
    assert not ids[0] & ids[1]

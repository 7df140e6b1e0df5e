"""The report in a browser, offline: it fits the window, is readable, and has the numbers of the summary."""

import json
import shutil

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

pytestmark = [pytest.mark.browser, pytest.mark.slow]

KINDS = ["a run", "hostile names", "many parties", "diverged", "without local training", "seventeen methods"]
SCREENS = [(kind, width, scheme) for kind in KINDS for width in (1280, 390) for scheme in ("light", "dark")]
# If something has changed: both widths and both schemes, one with the names that are hardest to fit.
WHEN_CHANGED = {("a run", 1280, "light"), ("hostile names", 390, "dark")}

@pytest.fixture(scope="module", autouse=True)
def drawing():
    """The tests of this file read the pictures."""


# The contrast of the text of every element against its background, as WCAG 2 defines it.
CONTRASTS = """() => {
  const rgba = text => {
    const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
    return text.startsWith('color(srgb') ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
  };
  const over = (top, under) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * under[i]).concat(1);
  const luminance = c => {
    const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255, 1]);
  };
  const found = [];
  for (const e of document.body.querySelectorAll('*')) {
    const text = [...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data.trim()).join('');
    if (!text || ['SCRIPT', 'STYLE', 'style', 'title'].includes(e.tagName) || !e.getClientRects().length) continue;
    const style = getComputedStyle(e), svg = e.namespaceURI.endsWith('svg');
    let opacity = 1;
    for (let p = e; p; p = p.parentElement) opacity *= Number(getComputedStyle(p).opacity);
    const under = behind(e), ink = rgba(svg ? style.fill : style.color);
    ink[3] *= opacity * (svg ? Number(style.fillOpacity) : 1);
    const [a, b] = [luminance(over(ink, under)), luminance(under)].sort((x, y) => y - x);
    found.push({tag: e.tagName, svg, text, ratio: (a + 0.05) / (b + 0.05), size: parseFloat(style.fontSize),
                under: under.slice(0, 3).map(Math.round).join(), width: e.getBoundingClientRect().width});
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium on this machine: neither chromium nor chromium-browser is on the PATH")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", params=[
    pytest.param(screen, id="-".join(map(str, screen)), marks=(
        pytest.mark.when_changed if screen in WHEN_CHANGED else pytest.mark.nightly))
    for screen in SCREENS])
def shown(request, browser, reports):
    """An open report: page, width, scheme, summary. Errors and network requests fail the test at the end."""
    kind, width, scheme = request.param
    folder = reports[kind]
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    context.set_offline(True)
    page, errors, requests = context.new_page(), [], []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: requests.append(request.url))
    address = (folder / "report.html").as_uri()
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    yield page, width, scheme, json.loads((folder / "summary.json").read_text())
    context.close()
    assert errors == []
    assert requests == [address]


def page_fits_the_window(shown):
    page, width, _, _ = shown
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.clientWidth") == width
    beyond = page.evaluate("""() => [...document.querySelectorAll('h1, h2, p, figure, svg, .scroll, .legend, details')]
        .filter(e => { const r = e.getBoundingClientRect(); return r.left < 0 || r.right > innerWidth + 0.5; })
        .map(e => e.outerHTML.slice(0, 80))""")
    assert beyond == []


def what_scrolls_is_reached_by_the_keyboard(shown):
    page, *_ = shown
    unreached = page.evaluate("""() => [...document.querySelectorAll('pre, .scroll')]
        .filter(e => e.scrollWidth > e.clientWidth && e.tabIndex < 0 && !e.querySelector('a, button, [tabindex]'))
        .map(e => e.outerHTML.slice(0, 80))""")
    assert unreached == []


def scores_are_those_of_the_summary(shown):
    page, _, _, summary = shown
    rows = page.evaluate("""() => [...document.querySelectorAll('#scores tbody tr')]
        .map(r => [r.dataset.method, ...[...r.cells].slice(1).map(c => c.innerText)])""")
    assert [row[0] for row in rows][:len(summary["methods"])] == list(summary["methods"])
    columns = ("mean", "p10", "worst", "global mean", "global p10", "global worst")
    for row, method in zip(rows, summary["methods"].values(), strict=False):
        for cell, column in zip(row[1:7], columns, strict=True):
            value = method["final"][column]
            if value is None:
                assert cell in ("–", "diverged")
            elif summary["score"] == "accuracy":
                assert float(cell.removesuffix("%")) == pytest.approx(100 * value, abs=0.0501)
            else:
                assert float(cell) == pytest.approx(value, rel=6e-4)
        if summary["alone"] is not None and row[0] != summary["alone"]:
            assert [int(n) for n in row[7].split(" / ")] == [method["final"][c] for c in ("better", "level", "worse")]
    advice = summary["federation"] if any(site["advice"] for site in summary["sites"]) else None
    gain = "" if advice is None else f"{100 * advice['gain']:+.1f}".replace("-", "\N{MINUS SIGN}")
    headline = (summary["finding"] if advice is None else "No site should join: no method is expected to help."
                if advice["method"] is None else
                f"Run {advice['method']}. Expected mean gain over training alone: {gain} points of skill.")
    assert page.locator("#finding").inner_text() == " ".join(headline.split())
    assert page.title() == " ".join(summary["title"].split())


def decision_is_in_sight_on_a_phone(shown):
    """All before the folds is within four screens, and the plot of the sites is within the window."""
    page, width, _, summary = shown
    if not any(site["advice"] for site in summary.get("sites", [])):
        return
    height = page.evaluate("document.querySelector('details').getBoundingClientRect().top + scrollY")
    assert width > 390 or height < 4 * 844  # screens of a phone
    edges = page.evaluate("""() => [...document.querySelectorAll('#forest td')]
        .map(cell => cell.getBoundingClientRect().right)""")
    assert len(edges) == 3 * len(summary["sites"])
    assert max(edges) <= width


def summary_in_the_page_parses(shown):
    page, _, _, summary = shown
    expected = {key: value for key, value in summary.items() if key != "sha256"}  # the digest of the file
    assert page.evaluate("JSON.parse(document.querySelector('#summary').textContent)") == expected


def every_picture_is_drawn(shown):
    page, width, _, summary = shown
    sizes = page.evaluate("""() => [...document.querySelectorAll('figure')].map(f => {
        const s = f.querySelector('svg').getBoundingClientRect();
        return [s.width, s.height, f.querySelectorAll('svg path').length]; })""")
    assert len(sizes) >= 1 + len(summary["methods"])
    for wide, high, paths in sizes:
        assert 200 <= wide <= width
        assert 100 <= high <= 1000
        assert paths > 5


def contrast_of_text_is_sufficient(shown):
    page, _, scheme, _ = shown
    texts = page.evaluate(CONTRASTS)
    assert len([f for f in texts if f["svg"]]) > 20
    assert len([f for f in texts if not f["svg"]]) > 40
    assert [f for f in texts if f["ratio"] < 4.5] == []
    assert [f for f in texts if f["svg"] and f["width"] < 2] == []
    paper = {"light": "255,255,255", "dark": "20,23,29"}[scheme]
    assert any(f["under"] == paper for f in texts)


def text_in_pictures_is_of_a_readable_size(shown):
    page, _, _, _ = shown
    sizes = page.evaluate("""() => [...document.querySelectorAll('svg text')].map(t =>
        parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a / (t.getScreenCTM().b ? 0 : 1))
        .filter(Number.isFinite)""")
    assert min(sizes) >= 9
    assert max(sizes) <= 20


def test_contrast_check_is_right(browser):
    """The check itself, with grey on white, text in an SVG, and a pale colour over a dark one."""
    page = browser.new_page()
    page.set_content("""<body style="background: #fff; margin: 0"><p style="color: #767676">a</p>
        <p style="color: #777777">b</p>
        <div style="background: #000"><p style="background: rgba(255, 255, 255, .5); color: #000">c</p></div>
        <figure style="color: #fff"><svg><text y="9" style="fill: currentColor">d</text></svg></figure></body>""")
    ratios = {f["text"]: round(f["ratio"], 2) for f in page.evaluate(CONTRASTS)}
    page.close()
    assert ratios == {"a": 4.54, "b": 4.48, "c": 5.28, "d": 1.0}


def every_value_has_the_title_of_its_column_on_a_phone(shown):
    """There a row is a card: the heading of the table is hidden, and nothing has to be scrolled sideways."""
    page, width, _, _ = shown
    cells = page.evaluate("""() => [...document.querySelectorAll('.cards tbody tr')].flatMap(row =>
        [...row.cells].slice(1).map((cell, i) => [
            cell.closest('table').tHead.rows[0].cells[i + 1].innerText || cell.closest('table').tHead.textContent,
            cell.dataset.label || '',
            getComputedStyle(cell, '::before').content, cell.getBoundingClientRect().right]))""")
    assert len(cells) > 10
    if width == 390:
        for title, label, shown_label, right in cells:
            assert label, title
            assert json.loads(shown_label) == label
            assert right <= width
    else:
        assert all(title.split() == label.split() for title, label, *_ in cells)
        assert {content for *_, content, _ in cells} == {"none"}


CHECKS = (page_fits_the_window, what_scrolls_is_reached_by_the_keyboard, scores_are_those_of_the_summary,
          decision_is_in_sight_on_a_phone, summary_in_the_page_parses, every_picture_is_drawn,
          contrast_of_text_is_sufficient, text_in_pictures_is_of_a_readable_size,
          every_value_has_the_title_of_its_column_on_a_phone)


def test_the_page(shown):
    """A page is opened once for all checks."""
    failures = []
    for check in CHECKS:
        try:
            check(shown)
        except AssertionError as error:
            failures.append(f"{check.__name__}: {error}")
    assert failures == []

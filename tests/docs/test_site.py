"""The built site: every link and anchor leads somewhere, pages fit a phone, axe finds no violation, search finds names.

``make docs`` builds the site before the tests in CI. Without it, or without Chromium, the tests are skipped.
"""

import functools
import html
import http.server
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest

SITE = Path(__file__).parents[2] / "site"
FIRST = ("index", "tutorial", "research", "federation-tutorial", "theory")  # the home page and the four parts
MORE = ("choosing", "recipes/paper_figure", "glossary", "coming-from", "decisions", "secure-sums", "api/mixing",
        "api/survival", "404")
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason="the site is not built: make docs")


def address_of(page):
    return f"{page}.html" if page in ("index", "404") else f"{page}/index.html"


def pages():
    return sorted(str(path.relative_to(SITE)) for path in SITE.rglob("index.html"))


@functools.cache
def names_in(path):
    """The texts of a page's attributes that lead elsewhere, and its anchors."""
    text = re.sub(r"<script.*?</script>|<pre.*?</pre>", "", path.read_text("utf-8"), flags=re.DOTALL)
    links = re.findall(r'\s(?:href|src)="([^"]*)"', text)
    return [html.unescape(link) for link in links], set(re.findall(r'\s(?:id|name)="([^"]+)"', text))


def test_every_link_and_anchor_of_the_site_leads_somewhere():
    broken, checked = [], 0
    for page in pages():
        source = SITE / page
        for link in names_in(source)[0]:
            target, anchor = urldefrag(link)
            if urlsplit(link).scheme or link.startswith("//"):
                continue
            checked += 1
            path = (source.parent / unquote(target)).resolve() if target else source
            path = path / "index.html" if path.is_dir() else path
            is_page = path.suffix == ".html" and path.is_file()
            if not path.exists() or (anchor and is_page and not anchor.startswith("__")
                                     and unquote(anchor) not in names_in(path)[1]):
                broken.append((page, link))
    assert checked > 5000
    assert broken == []


def test_each_page_leads_to_the_previous_and_to_the_next_one():
    """Followed by their feet, the pages are one chain from the home page to the last one, and the same one back."""
    def at_the_foot(page, side):
        foot = re.search(rf'<a href="([^"]+)" class="md-footer__link md-footer__link--{side}"',
                         (SITE / page).read_text("utf-8"))
        return foot and str(((SITE / page).parent / foot[1] / "index.html").resolve().relative_to(SITE.resolve()))

    chain = ["index.html"]
    while (following := at_the_foot(chain[-1], "next")) and following not in chain:
        assert at_the_foot(following, "prev") == chain[-1]
        chain.append(following)
    others = {page for page in pages() if not page.startswith("recipes/") and "This page has moved" not in
              (SITE / page).read_text("utf-8")}
    assert set(chain) == others


@pytest.fixture(scope="module")
def served():
    """The address of the site, and a browser without a network beyond it."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no Chromium on this machine: neither chromium nor chromium-browser is on the PATH")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=[
            "--no-sandbox", "--disable-gpu", "--disable-background-networking"])
        yield f"http://127.0.0.1:{server.server_port}/", chromium
        chromium.close()
    server.shutdown()
    server.server_close()


OVERFLOW = """() => [document.documentElement.scrollWidth, [...document.querySelectorAll('article *')].filter(e => {
    if (e.closest('.md-typeset__scrollwrap, pre, .formula, .md-clipboard, svg, details:not([open])')) return false;
    const box = e.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map(e => e.outerHTML.slice(0, 90))]"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_pages_fit_the_window(served, width, every):
    """Only tables, code and formulas scroll sideways, in themselves."""
    address, browser = served
    page = browser.new_page(viewport={"width": width, "height": 900})
    wide = {}
    for path in pages() if every else map(address_of, FIRST):
        page.goto(address + path)
        total, beyond = page.evaluate(OVERFLOW)
        if total > width or beyond:
            wide[path] = (total, beyond[:3])
    page.close()
    assert wide == {}


@pytest.mark.browser
@pytest.mark.parametrize(("chosen", "scheme"), [
    (FIRST, "light"), pytest.param((*FIRST, *MORE), "dark", marks=pytest.mark.nightly),
    pytest.param(MORE, "light", marks=pytest.mark.nightly)], ids=["first", "dark", "more"])
def test_axe_finds_no_violation(served, chosen, scheme):
    """The rules of WCAG 2.1 A and AA: contrast, alternative texts, names of links, keyboard access."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    address, browser = served
    context = browser.new_context(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page, violations = context.new_page(), {}
    for name in chosen:
        page.goto(address + address_of(name))
        report = axe.Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
                                             "resultTypes": ["violations"]}).response["violations"]
        violations |= {f"{name}: {rule['id']}": [node["html"][:120] for node in rule["nodes"][:3]] for rule in report}
    context.close()
    assert violations == {}


@pytest.mark.browser
@pytest.mark.parametrize(("words", "expected"), [
    ("kappa", "glossary/"), ("FedAvg in Flower", "coming-from/"),
    pytest.param("lambda", "glossary/", marks=pytest.mark.nightly),
    pytest.param("Ditto PFLlib", "coming-from/", marks=pytest.mark.nightly)])
def test_the_search_finds_letters_of_the_papers_and_names_of_peers(served, words, expected):
    address, browser = served
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{address}?q={words}")
    page.wait_for_selector(".md-search-result__item a", state="attached", timeout=60_000)
    links = page.evaluate("[...document.querySelectorAll('.md-search-result__item > a')].slice(0, 5).map(a => a.href)")
    page.close()
    assert any(expected in link for link in links), links

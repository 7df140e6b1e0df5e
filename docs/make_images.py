"""Make the pictures of the tutorial: run its program and its commands in a new folder, and photograph what they write.

``python docs/make_images.py`` needs the extra ``test`` (playwright) and Chromium, and takes some minutes. It prints the
output of every command, with which the texts on the page can be compared. ``python docs/make_images.py --report
runs/digits`` makes the picture of README and home from a run of `digits`. ``--rehearsal log.txt`` makes that of a
federation from what `resolvent lead start digits --rehearse` has printed.
"""

import argparse
import contextlib
import html
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from playwright import sync_api

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
BLUE, ORANGE = "#3b6fb6", "#c7622c"


def run_page(folder: Path) -> None:
    """Run the program, write the experiment and run the commands of the page, in this order."""
    page = (DOCS / "tutorial.md").read_text("utf-8")
    program, experiment = (re.search(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
                           for language in ("python", "yaml"))
    assert program
    assert experiment
    (folder / "mine.yaml").write_text(experiment[1])
    subprocess.run([sys.executable, "-c", program[1]], cwd=folder, check=True)
    for command in re.findall(r"^resolvent ((?:check|run|model (?:refit|predict|evaluate)) .*)$", page, re.MULTILINE):
        print(f"$ resolvent {command}", flush=True)
        subprocess.run([sys.executable, "-m", "resolvent.cli", *command.split()], cwd=folder, check=True)


def draw_table(folder: Path) -> None:
    """The patients of each hospital by diagnosis."""
    counts = pd.read_csv(folder / "tumours.csv").groupby(["hospital", "diagnosis"]).size().unstack()
    figure, axes = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
    left = 0
    for name, colour in (("benign", BLUE), ("malignant", ORANGE)):
        axes.barh(counts.index, counts[name], left=left, color=colour, label=name)
        left = left + counts[name]
    axes.invert_yaxis()
    axes.set_xlabel("patients")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "tutorial-table.png")


def draw_predictions(folder: Path) -> None:
    """The probability of a malignant tumour for each new patient, and the diagnosis that became known later."""
    table = pd.read_csv(folder / "predictions.csv")
    table["diagnosis"] = pd.read_csv(folder / "later.csv")["diagnosis"]
    table = table.sort_values("probability malignant", ignore_index=True)
    figure, axes = plt.subplots(figsize=(6.4, 2.8), layout="constrained")
    for name, colour, marker in (("benign", BLUE, "o"), ("malignant", ORANGE, "^")):
        rows = table[table["diagnosis"] == name]
        axes.scatter(rows.index + 1, rows["probability malignant"], color=colour, marker=marker,
                     label=f"later found {name}")
    axes.axhline(0.5, color="grey", linewidth=0.8, linestyle="--")
    axes.set_xlabel("new patients, in the order of the probability")
    axes.set_ylabel("probability malignant")
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "tutorial-predictions.png")


def save(figure: Any, name: str) -> None:
    """Write a figure."""
    figure.savefig(IMAGES / name, dpi=130)
    plt.close(figure)


@contextlib.contextmanager
def browser_page(width: int, height: int = 900) -> Iterator[sync_api.Page]:
    """An empty page of a browser."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
        browser.close()


def photograph_report(run: Path, name: str, width: int) -> None:
    """The report of a run, up to the first fold."""
    with browser_page(width) as page:
        page.goto((run / "report.html").absolute().as_uri())
        height = page.evaluate("document.querySelector('details').getBoundingClientRect().top")
        page.screenshot(path=IMAGES / name, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})


def photograph_terminal(log: Path, name: str) -> None:
    """What a command has printed, as a terminal shows it."""
    with browser_page(860) as page:
        page.set_content("<pre style='margin: 0; padding: 16px; background: #1e222a; color: #e6e6e6; font: 15px/1.35 "
                         f"DejaVu Sans Mono; width: max-content'>{html.escape(log.read_text('utf-8').rstrip())}</pre>")
        page.locator("pre").screenshot(path=IMAGES / name)


def photograph_later_sections(folder: Path) -> None:
    """The reliability diagrams and the columns by sites of the page on calibration, for the tutorial's hospitals."""
    run = str(folder / "runs" / "mine")
    for command in (["calibrate", run, "--method", "FedAvg", "--goal", "malignant", "cost=5:1"],
                    ["explain", run, "--method", "FedAvg"]):
        print(f"$ resolvent model {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "resolvent.cli", "model", *command], cwd=folder, check=True)
    with browser_page(1000) as page:
        page.goto((folder / "runs" / "mine" / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        page.locator("#calibration-1 .panels").screenshot(path=IMAGES / "after-calibration.png")
        page.locator("#explanation-1 figure").screenshot(path=IMAGES / "after-explanation.png")


def main() -> None:
    """Make the pictures that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="a folder in which the tutorial has been run")
    parser.add_argument("--report", type=Path, help="the folder of a run of digits")
    parser.add_argument("--rehearsal", type=Path, help="the printed lines of a rehearsal")
    options = parser.parse_args()
    if options.report:
        photograph_report(options.report, "report.png", 1180)
    if options.rehearsal:
        photograph_terminal(options.rehearsal, "rehearsal.png")
    if options.report or options.rehearsal:
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if options.folder is None:
            run_page(folder)
        draw_table(folder)
        draw_predictions(folder)
        photograph_report(folder / "runs" / "mine", "tutorial-report.png", 1180)
        photograph_later_sections(folder)


if __name__ == "__main__":
    main()

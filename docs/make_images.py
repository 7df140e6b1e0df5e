"""Make the pictures of the tutorial: run its program and its commands in a new folder, and photograph what they write.

``python docs/make_images.py`` needs the extra ``test`` (playwright) and Chromium, and takes some minutes. It prints the
output of every command, with which the texts on the page can be compared.
"""

import re
import shutil
import subprocess
import sys
import tempfile
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


def photograph(folder: Path) -> None:
    """The report of the comparison."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        page.goto((folder / "runs" / "mine" / "report.html").as_uri())
        page.screenshot(path=IMAGES / "tutorial-report.png")
        browser.close()


def photograph_later_sections(folder: Path) -> None:
    """The reliability diagrams and the columns by sites of the page on calibration, for the tutorial's hospitals."""
    run = str(folder / "runs" / "mine")
    for command in (["calibrate", run, "--method", "FedAvg", "--positive", "malignant", "--goal", "cost=5:1"],
                    ["explain", run, "--method", "FedAvg"]):
        print(f"$ resolvent model {' '.join(command)}", flush=True)
        subprocess.run([sys.executable, "-m", "resolvent.cli", "model", *command], cwd=folder, check=True)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium") or shutil.which(
            "chromium-browser"), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1000, "height": 900}, color_scheme="light")
        page.goto((folder / "runs" / "mine" / "report.html").as_uri())
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
        page.locator("#calibration-1 .panels").screenshot(path=IMAGES / "after-calibration.png")
        page.locator("#explanation-1 figure").screenshot(path=IMAGES / "after-explanation.png")
        browser.close()


def main() -> None:
    """Make all pictures."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary)  # a folder in which the page has been run
        if len(sys.argv) == 1:
            run_page(folder)
        draw_table(folder)
        draw_predictions(folder)
        photograph(folder)
        photograph_later_sections(folder)


if __name__ == "__main__":
    main()

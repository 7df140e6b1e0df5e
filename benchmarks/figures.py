"""The numbers and tables of the pages, computed from the committed JSON files.

    python benchmarks/figures.py            # writes all; prints the pages that changed

A page, of the documentation or beside a benchmark, marks what is computed, a number in a sentence or a table:

    <!-- figure: speed() -->
    | ... |
    <!-- end -->

What is between the marks is the value of the expression, a call of a function of this file. It is committed, so that
a page can be read without a build; a test compares it with the files. The build of the site leaves the marks out.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "benchmarks")]  # for the tables that a benchmark has beside its picture
MARKED = re.compile(r"(?P<mark><!-- figure: (?P<expression>.+?) -->)(?P<value>.*?)(?P<end><!-- end -->)", re.DOTALL)

Row = dict[str, Any]


def pages() -> list[Path]:
    """The pages that can have marks."""
    folders = ("docs", "benchmarks", "src", "experiments")
    return [ROOT / "README.md", *(page for folder in folders for page in sorted((ROOT / folder).rglob("*.md")))]


def filled(text: str) -> str:
    """The text of a page with the values of its expressions; a value of several lines has lines of its own."""

    def value(match: re.Match[str]) -> str:
        new = str(eval(match["expression"], dict(globals())))
        if "\n" in new:  # inside an entry of a list the lines are as far from the margin as the mark
            indent = " " * (match.start() - text.rfind("\n", 0, match.start()) - 1)
            new = "\n" + "".join(f"{indent}{line}".rstrip() + "\n" for line in new.split("\n")) + indent
        return f"{match['mark']}{new}{match['end']}"

    return MARKED.sub(value, text)


def main() -> None:
    """Write all pages."""
    for page in pages():
        old = page.read_text("utf-8")
        new = filled(old)
        if new != old:
            page.write_text(new, "utf-8")
            print(page.relative_to(ROOT))


@cache
def read(name: str) -> Any:
    """The committed result of a benchmark."""
    return json.loads((ROOT / "benchmarks" / f"{name}.json").read_text("utf-8"))


def table(head: Sequence[str], rows: Iterable[Iterable[Any]], numbers: bool = False) -> str:
    """A table in Markdown; columns of numbers are on the right."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return "\n".join([lines[0], "|---|" + ("---:|" if numbers else "---|") * (len(head) - 1), *lines[1:]])


def percent(value: float, digits: int = 1) -> str:
    """A share in percent."""
    return f"{100 * value + 1e-9:.{digits}f} %"


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign."""
    return f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")


def three(value: float) -> str:
    """A positive number with three digits at least."""
    return f"{value:#.3g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def chosen(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row[key] == value for key, value in values.items())]


def command(name: str) -> str:
    """The command that writes the file of a benchmark."""
    return f"`{read(name)['command']}`"


def number(name: str, *keys: Any, digits: int = 1, **values: Any) -> str:
    """One number of a file, under these keys: from its top, or in the row that has these values."""
    found: Any = chosen(read(name)["rows"], **values)[0] if values else read(name)
    for key in keys:
        found = found[key]
    return f"{found:,.{digits}f}"


def imputation() -> str:
    """Bias and coverage of complete cases and of imputations, beside tables without gaps."""
    ways = ("no gaps", "complete cases", "imputations", "R's mice")
    rows = [[family, name.replace("[T.B]", " B"), *(f"{signed(of[way][name]['bias'], 2)}; "
                                                     f"{percent(of[way][name]['coverage'])}" if way in of else ""
                                                     for way in ways)]
            for family, of in read("imputation")["families"].items() for name in read("imputation")["truth"]]
    return table(["family", "coefficient", *ways], rows)


def reference() -> Any:
    """The readings of the table of methods and problems, `experiments/reference`."""
    from experiments.reference import readings

    return readings


# Speed.

def fastest(workload: str) -> tuple[Row, Row]:
    """Of a workload, the fastest setting of ours and the fastest other simulator."""
    rows = [row for row in chosen(read("simulators")["rows"], workload=workload) if row["name"] != "C kernel"]
    ours, other = (min((row for row in rows if (row["name"] == "ours") == is_ours), key=lambda row: row["round"])
                   for is_ours in (True, False))
    return ours, other


def speed() -> str:
    """Milliseconds per round, for each workload."""
    rows = []
    for key, facts in read("simulators")["workloads"].items():
        ours, other = fastest(key)
        rows.append((f"{facts['parties']:,} parties, {facts['title']}, {facts['epochs']} epoch"
                     + "s" * (facts["epochs"] > 1), three(1000 * ours["round"]),
                     f"{other['name']}: {three(1000 * other['round'])}", f"{other['round'] / ours['round']:.1f}"))
    return table(("work", "Resolvent", "fastest other", "times as long"), rows)


MODELS = {"logistic": "logistic regression, 5,000 features", "series": "1-D convolutions", "bag": "bag of embeddings",
          "mlp": "MLP", "gru": "GRU", "cnn": "CNN", "transformer": "transformer", "resnet": "ResNet-20",
          "language": "language model", "lstm": "LSTM"}


def times_as_fast(name: str) -> dict[str, float]:
    """For each model, PyTorch's CPU time on one core divided by ours."""
    times = {(row["model"], row["contestant"]): row["us_cpu"] for row in chosen(read(name)["rows"], cores=1)}
    return {model: times[model, "PyTorch"] / times[model, "ours"] for model in MODELS}


def models(**names: str) -> str:
    """The ratios on several machines: the file of each."""
    rows = []
    for machine, name in names.items():
        ratios = list(times_as_fast(name).values())
        rows.append((machine, *(f"{ratio:.2f}" for ratio in (*ratios, geometric_mean(ratios)))))
    return table(("machine", *MODELS.values(), "geometric mean"), rows)


def mean_speed(name: str) -> str:
    """The geometric mean of the ratios."""
    return f"{geometric_mean(times_as_fast(name).values()):.1f}"


def mean_of_operations() -> str:
    """The geometric mean of the ratios of single operations."""
    return f"{read('convolutions')['geometric_mean']:.2f}"


def page_of_models(name: str) -> str:
    """The tables of a race of models."""
    from benchmarks.models.report import markdown

    return markdown(read(name), f"{name}.svg")


def page_of_simulators() -> str:
    """The tables of the race of simulators."""
    from benchmarks.simulators.report import markdown

    return markdown(read("simulators"), "simulators.svg")


CAUSES = ("compiling or loading", "tracing", "imports", "lowering", "pictures and report", "rounds", "evaluation",
          "decision")


def startup() -> str:
    """CPU seconds of whole commands by cause."""
    rows = []
    for work, label in (("digits", "digits"), ("ResNet-20", "ResNet-20, two rounds")):
        for kind, facts in read("startup")["whole"]["processes"][work].items():
            causes = facts["causes"]
            rest = sum(seconds for cause, seconds in causes.items() if cause not in CAUSES)
            rows.append((f"{label}, {kind}", *(f"{causes[cause]:.1f}" if cause in causes else "" for cause in CAUSES),
                         f"{rest:.1f}", f"{facts['median']:.1f}"))
    return table(("CPU seconds", *CAUSES, "else", "all"), rows)


def seconds_of_digits(kind: str) -> str:
    """CPU seconds of a whole run of digits: cold, without compiled programs of an earlier run, or warm."""
    return f"{read('startup')['whole']['processes']['digits'][kind]['median']:.0f}"


def round_of_parties() -> str:
    """Milliseconds of a round with a few of the largest number of parties."""
    return f"{max(row['milliseconds_per_round'] for row in read('parties')['rows']):.1f}"


def accelerator() -> str:
    """Milliseconds of a round on a GPU and on two cores, and seconds of the first round, which compiles."""
    cores = {row["workload"]: row["seconds"] for row in chosen(read("schedulers")["rows"], devices=2,
                                                               scheduler="sequential")}
    rows: dict[str, dict[str, Row]] = {}
    for row in read("accelerator")["rows"]:
        rows.setdefault(row["workload"], {})[row["scheduler"]] = row
    facts = read("simulators")["workloads"]
    return table(("work", "GPU, side by side", "GPU, one after the other", "two cores", "first round on the GPU, s"), [
        (f"{facts[key]['parties']:,} parties, {facts[key]['title']}", *(three(1000 * ways[way]["seconds"])
         for way in ("lanes", "sequential")), three(1000 * cores[key]), f"{ways['lanes']['first_call']:.0f}")
        for key, ways in rows.items()])


def processes() -> str:
    """Memory and time of one and two processes."""
    return table(("work", "processes", "peak memory of each", "milliseconds per round"), [
        (row["work"].replace("logistic,", "logistic regression,"), row["processes"],
         " and ".join(f"{mib:,}" for mib in row["peak_mib"]) + " MiB", f"{1000 * row['seconds_per_round']:.1f}")
        for row in read("processes")["rows"]])


def network() -> str:
    """Seconds of a round over NVIDIA FLARE."""
    small, _, large, _ = read("network")["runs"]

    def cell(run: Row, way: str) -> str:
        return f"{run[way]['seconds']:#.2g}" if way in run else ""

    return table(("round", "digits", "100 MB each way"), [
        ("a round of NVIDIA FLARE that does nothing", cell(small, "engine"), cell(large, "engine")),
        ("ours", cell(small, "digits"), cell(large, "messages")),
        ("NVIDIA FLARE's own `FedAvg` of the same model", cell(small, "NVIDIA FLARE's FedAvg"), "")])


def secure_sums() -> str:
    """CPU milliseconds of a site and of the server, and bytes compared with plain replies."""
    ways = {"plain": "plain", "secure": "more than 2/3", "all sites": "all sites",
            "all sites, 32 bits": "all sites, 32 bits", "SecAgg+": "SecAgg+"}

    def cell(row: Row, way: str) -> str:
        key = f"{way}: ms "
        return f"{row[key + 'site']:g}, {row[key + 'server']:g}" if key + "site" in row else "not measured"

    return table(("sites", "parameters", *ways.values(), "bytes"), [
        (row["sites"], f"{row['parameters']:,}", *(cell(row, way) for way in ways),
         f"{row['secure: bytes site'] / row['plain: bytes site']:.2f}") for row in read("secure_sums")["rows"]])


def lora() -> str:
    """What adapters save."""
    rows = {row["method"]: row for row in read("lora")["rows"]}
    titles = {"full": "full fine-tuning", "lora": "LoRA", "ffa": "FFA-LoRA"}
    states = {"full": rows["full, fedplus"]["states"], "lora": rows["lora, fedplus"]["states"],
              "ffa": rows["ffa, fedavg"]["parameters"] * 4 * read("lora")["parties"] / 1e6}
    return table(("", "parameters", "sent in a round", "parties store with Fed+", "CPU time of a round", "memory"), [
        (title, f"{row['parameters']:,}", f"{row['bytes'] / 1e6:,.1f} MB", f"{states[kind]:.1f} MB",
         f"{row['cpu_seconds']:.1f} s", f"{row['megabytes'] / 1000:.1f} GB")
        for kind, title in titles.items() for row in [rows[f"{kind}, fedavg"]]])


def language() -> str:
    """Ways to adapt a language model."""
    rows = read("language")["rows"]
    return table(("", "learning rate", "characters that are predicted"), [
        (row["method"], str(row.get("learning_rate", "")), percent(row["accuracy"]) + (
            f" ± {100 * row['deviation']:.1f}" if "deviation" in row else "")) for row in rows])


def convolutions() -> str:
    """The speed of operations beside PyTorch's."""
    from convolution_report import text

    return text()


# Attacks.

def attacks() -> str:
    """What combined questions give with and without the rules of a site. Each row names the test that has it."""
    return table(("attack", "without the rule", "with it", "test"), [
        (row["attack"], row["without"], row["with"], f"`{row['test'].partition('::')[0].rpartition('/')[2]}`")
        for row in read("attacks")["rows"]])


# Accuracy.

def gain_on_digits() -> str:
    """The expected mean gain of the chosen method over training alone, as the picture has it."""
    record = read("digits")
    return f"{record['method']} gains {100 * record['gain']:.1f} points"


def advice_of_digits() -> str:
    """The numbers of sites with each advice, as Python prints them."""
    return f"```text\n{read('digits')['advice']}\n```"


def sites_of_digits(advice: str) -> str:
    """The number of sites with an advice."""
    return str(read("digits")["advice"].get(advice, 0))


def accuracies(rows: Iterable[tuple[Row, float]]) -> str:
    """Test accuracies under attacks; those below the limit of their row are bold, those not measured are empty."""
    rows = list(rows)
    attacks = list(dict.fromkeys(key for row, _ in rows for key in row if key not in ("method", "malicious", "none")))

    def cell(row: Row, column: str, limit: float) -> str:
        value = row.get(column)
        return "" if value is None else f"**{value}**" if round(limit - value, 6) > 0 else str(value)

    return table(("method", "no attack", *attacks), [
        (f"`{row['method']}`", *(cell(row, column, limit) for column in ("none", *attacks))) for row, limit in rows],
        numbers=True)


def defences(share: float) -> str:
    """All methods with this share of malicious parties."""
    record = read("defences")
    return accuracies((row, row["none"] - record["tolerance"]) for row in chosen(record["rows"], malicious=share))


def personal_defences() -> str:
    """Parties that differ, compared with training alone."""
    record = read("defences")
    alone = chosen(record["apart"], method="local")[0]["none"]
    return accuracies((row, alone - record["tolerance_alone"]) for row in record["apart"])


def normalisations() -> str:
    """Ways to normalise, on digits and images, with ten and two classes for each party."""
    rows = read("model_state")["rows"]
    return table(("normalisation", "digits, ten classes", "digits, two", "CIFAR-10, ten classes", "CIFAR-10, two"), [
        (name, *(f"{100 * (row.get('shared') or row['own'])[0]:.1f}" for data in ("digits", "cifar10")
                 for classes in (10, 2) for row in chosen(rows, method=name, data=data, classes=classes)))
        for name in dict.fromkeys(row["method"] for row in rows)])


OURS = {"alone": "Resolvent, alone", "FedAvg": "FedAvg", "robust": "robust interpolation",
        "pooled": "Resolvent, pooled (bound)"}
PEERS = ("logistic regression", "ridge", "histogram boosting", "XGBoost")


def scores_of_tables() -> str:
    """The scores on the six tables, with intervals."""
    tables = read("tables")["tables"]
    titles = OURS | {label: label for peer in PEERS for label in (f"{peer}, alone", f"{peer}, pooled")}

    def score(numbers: Sequence[float]) -> str:
        value, low, high = (f"{number:.3f}" if abs(number) < 10 else f"{number:,.0f}" for number in numbers)
        return f"{value} [{low}, {high}]"

    return table(("method", *(of["table"] for of in tables)), [
        (title, *(next((score(m["score"]) for m in of["methods"] if m["method"] == label), "") for of in tables))
        for label, title in titles.items()])


def seconds_on_tables() -> str:
    """CPU seconds on the six tables."""
    tables = read("tables")["tables"]
    return table(("", *(of["table"] for of in tables)), [
        ("Resolvent", *(f"{of['cpu_seconds']['resolvent']:.0f}" for of in tables)),
        ("the six peers", *(f"{sum(of['cpu_seconds']['peers'].values()):.1f}" for of in tables))])


def advice_on_tables() -> str:
    """The advice to the sites of the six tables by the former rule and by the present one."""
    def counts(answers: Iterable[str]) -> str:
        return ", ".join(f"{number} {answer}" for answer, number in Counter(answers).most_common())

    def row(of: Row) -> Iterator[Any]:
        sites, former = of["sites"], of["former"]
        losing = [site for site in sites if site["own"][0] is not None and site["own"][0] < 0]
        joined = sum("join" in former.get(site["site"], "") for site in losing)
        yield from (of["table"], counts(former.values()), counts(site["answer"] for site in sites))
        yield from (of["method"] or "none", f"{joined} of {len(losing)}")
        yield f"{sum(site['answer'] == 'join' for site in losing)} of {len(losing)}"

    return table(("table", "former rule", "present rule", "method to run", "told to join by the former rule, of the "
                  "sites whose own rows show a loss", "by the present rule"), map(row, read("tables_advice")["tables"]))


def regression_limits() -> str:
    """Which regressions run at the default limits of the sites."""

    def outcome(row: Row) -> str:
        if row["plain"] == "complete":
            return "yes"
        number, limits = row["plain, sites that refuse"], row["plain, limits"]
        if number == 1:
            return f"no: 1 refuses by {' and '.join(f'`{name}`' for name in limits)}"
        return (f"no: {number} refuse by "
                + " and ".join(f"`{name}` ({sites} site{'s' * (sites > 1)})" for name, sites in limits.items()))

    return table(("regression", "sites", "runs"), [
        (row["fit"], f"{row['sites']}, the smallest with {row['rows of the smallest site']} rows", outcome(row))
        for row in read("regressions")["limits"]])


def by_epsilon(name: str, data: str) -> str:
    """The test accuracy of each method for each epsilon, in percent."""
    rows = chosen(read(name)["rows"], data=data)
    epsilons = list(dict.fromkeys(row["epsilon"] for row in rows))
    titles = ("no noise" if epsilon == "inf" else f"ε = {float(epsilon):g}" for epsilon in epsilons)
    return table(("", *titles), [
        (method, *(f"{100 * row['accuracy']:.1f}" for epsilon in epsilons
                   for row in chosen(rows, method=method, epsilon=epsilon)))
        for method in dict.fromkeys(row["method"] for row in rows)])


def auc_of_attack(method: str, epsilon: str) -> str:
    """The area under the curve of the attack with shadow models."""
    row, = chosen(read("privacy")["attacks"], method=method, epsilon=epsilon)
    return f"{row['auc']:.2f}"


def saved_rounds() -> str:
    """The least and the greatest share of rounds that acceleration saves."""
    shares = [1 - row[key] / row["plain"] for row in read("anderson")["rows"] for key in row
              if key.startswith("memory") and row[key] is not None]
    return f"between {percent(min(shares), 0)} and {percent(max(shares), 0)}"


def audit() -> str:
    """What attacks prove against the epsilon that is claimed."""
    return table(("protects", "composition", "claimed ε", "lower bound"), [
        (row["unit"], row["composition"], f"{row['claim']:.2f}", f"{row['lower_bound']:.2f}")
        for row in read("audit")["rows"]])


# Advice: worlds of known truth.

def advice_worlds() -> str:
    """The advice of the rule for sites that differ, in worlds of known truth, with the aims that a world misses."""
    def rate(value: float | None) -> str:
        return "\N{EN DASH}" if value is None else percent(value, 0)

    def row(cell: Row) -> Iterator[Any]:
        yield from (cell["cell"], cell["draws"], f"{cell['lose_joined']} of {cell['lose']}", rate(cell["gain_stay"]))
        yield from (rate(cell[key]) for key in ("unclear", "large_right", "covered"))
        yield from ("\N{EN DASH}" if cell[key] is None else f"{cell[key]:.2f}" for key in (
            "regret", "regret_fedavg", "regret_alone", "regret_mixed"))
        yield ", ".join(cell["missed"]) or "none"

    return table(("world", "draws", "told to join, of sites that lose over 5 points", "told to stay alone, of those "
                  "that gain over 5", "unclear", "right, of gains and losses over 10 points from 100 rows on",
                  "truth in the interval", "regret", "of FedAvg", "of alone", "of mixed effects", "aims missed"),
                 map(row, read("advice")["cells"]))


WHY_MISSED = {
    "stated probabilities":
        "A posterior mixes worlds in which all sites are alike with worlds in which strangers hide. In a world of "
        "one kind it is too timid or too sure.",
    "regret above a third":
        "Sites whose advice is unclear have the regret of alone. There are many with few rows, or with strangers "
        "among the sites.",
    "coverage":
        "The interval by the site's own rows has the truth in about 95 %. The one by the rows of all sites is "
        "shorter, and errs where sites differ otherwise than its mixture says.",
    "losers told to join":
        "Their own model was lucky in its rows, or they lose few points, which so few rows do not show.",
    "losers: too few to prove":
        "At most 3 % are told to join, but so few sites lose that the interval reaches above it.",
    "regret above always FedAvg":
        "All are alike, and the rule asks each site for evidence, which few rows do not have.",
    "large gains unclear or wrong":
        "Effects vary or are weak, and 100 rows leave many of these sites unclear.",
    "few decisions":
        "Fewer than 300 sites lose, or gain or lose over 10 points. With label skew hardly any loses, however many "
        "draws there are.",
}


def advice_missed() -> str:
    """Each aim with the number of worlds that miss it, and why."""
    cells = read("advice")["cells"]
    missed = Counter(aim for cell in cells for aim in cell["missed"])
    return table(("aim that is missed", f"worlds, of {len(cells)}", "why"), [
        (aim, number, WHY_MISSED[aim]) for aim, number in missed.most_common()])


def advice_stated() -> str:
    """The stated probabilities of all sites of all worlds beside the shares that gain."""
    bins = [(0.0, 0.05), (0.05, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 0.95), (0.95, 1.0)]
    parts = [part for cell in read("advice")["cells"] for part in cell["stated"]]  # sites, mean of the stated, share

    def row(low: float, high: float) -> Iterator[Any]:
        inside = [part for part in parts if low <= part[1] < high or part[1] == high == 1]
        sites = sum(part[0] for part in inside)
        yield from (f"{percent(low, 0)} to {percent(high, 0)}", f"{sites:,}")
        yield from (percent(sum(part[0] * part[i] for part in inside) / sites) for i in (1, 2))

    return table(("stated", "sites", "mean of the stated", "share that gains"), (row(*ends) for ends in bins))


def advice_unclear() -> str:
    """The part of the regret of all sites that is at those whose advice is unclear."""
    unclear, regret = (sum(cell[key] * cell["sites"] for cell in read("advice")["cells"])
                       for key in ("regret_unclear", "regret"))
    return percent(unclear / regret, 0)


def advice_joined(world: str) -> str:
    """The sites of a world that lose more than 5 points, and how many of them are told to join."""
    (cell,) = (cell for cell in read("advice")["cells"] if cell["cell"].startswith(world))
    return f"{cell['lose_joined']} of {cell['lose']}"


def advice_draws() -> str:
    """The sites of all worlds that lose more than 5 points, and how many of them are told to join."""
    cells = read("advice")["cells"]
    joined, lost = (sum(cell[key] for cell in cells) for key in ("lose_joined", "lose"))
    return f"{joined} of {lost:,} ({percent(joined / lost)})"


def folds_cost() -> str:
    """How many times the CPU time of one split five folds take, and the seconds of the population of many sites."""
    record = read("advice_cost")
    ratios = [row["ratio"] for row in record["folds"].values()]
    sites, seconds = max(((int(sites), seconds) for sites, seconds in record["population"].items()))
    return (f"{min(ratios):.1f} to {max(ratios):.1f} times the CPU time of one split; the advice to {sites} sites "
            f"takes {seconds:.1f} s")


def population_sums() -> str:
    """Of how many sites the gain was found from a sum that hides it, by the number of sites in the sum."""
    *others, last = (f"{100 * row['found']:.0f} % with {row['sites']}" for row in read("population_sums"))
    return f"{', '.join(others)} and {last} sites in the sum"


# The papers' claims.

def verdicts() -> str:
    """The number of claims with each verdict, for each paper."""
    from experiments.results import RESULTS, counts_table, shown_records

    return counts_table(shown_records(RESULTS).values())


def claims() -> str:
    """How many claims of the papers have each verdict."""
    from experiments.results import RESULTS, shown_records, verdict_counts

    _, holds, in_part, fails, not_decided, _ = verdict_counts(shown_records(RESULTS).values())[-1]
    return f"{holds} hold, {in_part} hold in part, {fails} do not hold, and {not_decided} are not decided"


# A release.

def release() -> str:
    """What the release was measured to do, and the commands that measure it again."""
    record, faults, audited = read("startup"), read("federation_faults"), read("audit")["rows"]
    worlds = read("advice")["cells"]
    sites = sum(cell["sites"] for cell in worlds)
    covered = sum(cell["sites"] * cell["covered"] for cell in worlds) / sites
    below = sum(row["lower_bound"] <= row["claim"] for row in audited)
    warm, cold = (record[key]["to the first rounds"] for key in ("warm", "cold"))
    return table(("what", "measured", "again with"), [
        *((f"Speed: {facts['title']}, {facts['parties']} parties",
           f"{three(1000 * ours['round'])} ms per round ({ours['setting']}); {other['name']}: "
           f"{three(1000 * other['round'])} ms, {other['round'] / ours['round']:.1f} times as long",
           "`python -m benchmarks.simulators`")
          for key, facts in read("simulators")["workloads"].items() for ours, other in [fastest(key)]),
        ("Start: seconds to the first rounds of `digits`", f"{warm:.1f}; {cold:.1f} in the first run",
         command("startup")),
        (f"Advice to {sites:,} simulated sites, most of them in worlds where sites differ",
         f"{advice_draws()} of the sites that lose over 5 points are told to join; {percent(covered)} of the intervals "
         "of level 95 % have the true gain", command("advice")),
        ("Kills: processes of a federation over NVIDIA FLARE",
         f"{faults['cases'] - faults['cases without such a process']} kills in {faults['runs']} runs; "
         f"{faults['runs with another result']} runs ended with another result", command("federation_faults")),
        ("Privacy: audits by attack", f"in {below} of {len(audited)} compositions the attack stays below the claimed "
         "epsilon", "`python benchmarks/audit.py`")])


if __name__ == "__main__":
    main()

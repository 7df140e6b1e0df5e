"""A regression in words: the summary as text."""

from typing import TYPE_CHECKING

import numpy as np

from resolvent.comparisons.text_tables import plain_table
from resolvent.errors import count_of, quote

if TYPE_CHECKING:
    from resolvent.comparisons.regression.fit import Fit

_ERRORS = {"model": "from the model", "clustered": "clustered by site",
           **{kind: f"robust to a wrong variance ({hc})" for kind, hc in
              {"robust": "HC1", "HC0": "HC0", "HC1": "HC1", "HC2": "HC2", "HC3": "HC3"}.items()}}


def summary(fit: "Fit") -> str:
    """The facts, the table of estimates and the findings."""
    head, rows = table_rows(fit)
    table = plain_table(head, rows, "text")
    blocks = [[fit.model.formula], facts_in_words(fit), [table], tests_in_words(fit), random_in_words(fit),
              fit.findings]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def facts_in_words(fit: "Fit") -> list[str]:
    """What was fitted, to what, and how well; a sentence each."""
    model = fit.model
    strata = "" if model.strata is None else f" and {model.strata}"
    family = f"family {fit.family}" if model.family is not None else (
        f"Cox regression, stratified by site{strata}, ties by {model.ties.capitalize()}")
    if model.baseline_times:
        family = f"Cox regression with one baseline for all sites, in {len(model.baseline_times) + 1} intervals of time"
    if model.keeps_intercepts:
        family += ", with an intercept of its own for each site"
    weights = {None: "", "sampling": ", with sampling weights",
               "frequency": f", which stand for {fit.observations:.0f}"}[model.weights]
    sentences = [f"{fit.count} rows of {len(model.sites)} sites{weights}; {family}; fitted in {fit.rounds} rounds."]
    if model.family_name == "cox":
        sentences.append(f"{count_of(model.counts[1], 'event')}, coded {quote(model.event)}.")
    if model.family_name == "ordinal":
        sentences.append(f"The odds are those of a higher class, in the order {', '.join(map(quote, model.classes))}.")
    elif model.classes:
        others = ", ".join(quote(name) for name in model.classes[1:])
        sentences.append(f"The odds are those of {others} against {quote(model.classes[0])}.")
    dispersion = f", dispersion {number(fit.dispersion)}" if model.family and model.family.has_dispersion else ""
    deviance = "" if model.family is None else f", deviance {fit.deviance:.2f}{dispersion}"
    likelihood = f"Mean of {fit.imputed.count} completed tables, by Rubin's rules" if fit.imputed is not None else (
        _likelihood(fit))
    sentences.append(f"{likelihood}{deviance}. Standard errors {_errors(fit)}; intervals of "
                     f"{fit.level:.0%}{_profiles(fit)}.")
    return sentences


def _likelihood(fit: "Fit") -> str:
    return "No likelihood" if not fit.has_likelihood else (
        f"Log-likelihood {fit.log_likelihood:.2f}, with Firth's penalty" if fit.firth else
        f"Log-likelihood {fit.log_likelihood:.2f}, AIC {fit.aic:.2f}")


def _profiles(fit: "Fit") -> str:
    return f", of the profile likelihood for {', '.join(fit.profile)}" if fit.profile and fit.errors == "model" else ""


def _errors(fit: "Fit") -> str:
    if fit.errors == "clustered" and fit.model.cluster is not None:
        return f"clustered by {fit.model.cluster} within the sites ({fit.clusters} clusters)"
    return _ERRORS[fit.errors]


def tests_in_words(fit: "Fit") -> list[str]:
    """A sentence for each hypothesis that is tested; for one combination of the coefficients with its estimate."""
    sentences = []
    for test in fit.tested.values():
        if isinstance(test, str):
            sentences.append(f"No test: {test}.")
            continue
        law = "chi-squared" if test.rest is None else "F"
        freedom = str(test.freedom) if test.rest is None else f"{test.freedom} and {test.rest:.1f}".removesuffix(".0")
        unit = "degree" if freedom == "1" else "degrees"
        sentence = (f"{test.kind} test of {test.hypothesis}: {law} {test.statistic:.2f} with {freedom} {unit} "
                    f"of freedom, p {probability(test.p)}")
        if test.estimate == test.estimate:
            sentence += f"; estimate {number(test.estimate)}, interval {_interval(test.low, test.high)}"
            if fit.effect is not None:
                low, high = np.exp([test.low, test.high])
                sentence += f"; {fit.effect} {number(np.exp(test.estimate))}, interval {_interval(low, high)}"
        sentences.append(f"{sentence}.")
    return sentences


def random_in_words(fit: "Fit") -> list[str]:
    """The fit with a random intercept: a sentence, and its table."""
    if fit.random is None:
        return []
    spread = f"a standard deviation of {number(fit.random.tau)}" if fit.random.tau else (
        "no standard deviation beyond chance")
    sentence = (f"Random intercept: the sites' intercepts have {spread}; p {probability(fit.random.p)} of the test "
                f"that it is zero. Log-likelihood {fit.random.log_likelihood:.2f}, by Laplace's approximation; fitted "
                f"in {fit.random.rounds} rounds.")
    rows = [[str(name), *(number(x) for x in line)] for name, line in zip(
        fit.random.names, fit.random.table.to_numpy(), strict=True)]
    return [sentence, "", plain_table(["", "estimate", "std. error"], rows, "text")]


def table_rows(fit: "Fit") -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table of estimates, as text."""
    table = fit.table
    statistic = "t" if "t" in table else "z"
    head = ["", "estimate", "std. error", statistic, "p", "interval"]
    if fit.effect is not None:
        head += [fit.effect, "interval"]
    rows = []
    for name, line in table.iterrows():
        row = [str(name), number(line["estimate"]), number(line["standard error"]), dashed(line[statistic], ".2f"),
               probability(line["p"]), _interval(line["low"], line["high"])]
        if fit.effect is not None:
            row += [number(line[fit.effect]), _interval(line[f"{fit.effect} low"], line[f"{fit.effect} high"])]
        rows.append(row)
    return head, rows


def number(x: float) -> str:
    """Four significant digits."""
    return dashed(x, "#.4g").rstrip(".")


def probability(p: float) -> str:
    """A p value: three decimals, or < 0.001."""
    return "-" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def _interval(low: float, high: float) -> str:
    return "-" if np.isnan(low) else f"{number(low)} to {number(high)}"


def dashed(x: float, form: str) -> str:
    """A number in a form; a dash for what could not be estimated."""
    return "-" if np.isnan(x) else format(x, form)

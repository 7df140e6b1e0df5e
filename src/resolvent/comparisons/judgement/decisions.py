"""From the measurements of a comparison to the advice: ``advise`` with the evidence of all sites.

Where training has not converged, the advice is given only at the sites at which it was the same after half of the
rounds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from resolvent.comparisons.judgement.advice import Candidate, ModelKind, SiteEvidence, advise
from resolvent.comparisons.judgement.convergence import Convergence
from resolvent.comparisons.judgement.decision_rule import DecisionRule
from resolvent.comparisons.judgement.evidence import Evidence
from resolvent.comparisons.judgement.metrics import run_columns
from resolvent.comparisons.judgement.site_judgement import Sites

_NOTHING = SiteEvidence(float("nan"), float("inf"), 0)


def decide(sites: Sites, evidence: Evidence, convergence: Mapping[str, Convergence],
           rule: DecisionRule = DecisionRule()) -> Sites:  # noqa: B008
    """The sites with their advice, and the method that the federation should run.

    Args:
        sites: the judgements of the sites, with their evidence.
        convergence: method -> whether its training has converged.
        rule: how gains and losses are weighed.
    """
    if evidence.alone is None or not evidence.candidates or not any(site.facts.evidence for site in sites.sites):
        return sites
    candidates = [_settled(candidate, sites, evidence, convergence, rule) for candidate in _candidates(sites, evidence)]
    federation = advise(candidates, rule)
    return replace(sites, federation=federation, sites=tuple(
        site._replace(advice=advice if site.has_reference(evidence.alone) else None)
        for site, advice in zip(sites.sites, federation.sites, strict=True)))


def _candidates(sites: Sites, evidence: Evidence) -> list[Candidate]:
    """The models to choose from: those of methods that send fewer bytes first, and then those that are named first."""
    traffic, candidates = evidence.traffic or {}, []
    kinds: tuple[ModelKind, ...] = ("shared", "personal")
    for method in sorted(evidence.candidates, key=lambda m: traffic.get(m, 0.0)):
        for model in kinds:
            of_sites = [site.facts.evidence.get(method, {}).get(model) for site in sites.sites]
            if any(of_site is not None for of_site in of_sites):
                candidates.append(Candidate(method, [s if s is not None else _NOTHING for s in of_sites], model))
    return candidates


def _settled(candidate: Candidate, sites: Sites, evidence: Evidence, convergence: Mapping[str, Convergence],
             rule: DecisionRule) -> Candidate:
    """The candidate with the sites at which more rounds would not change the advice."""
    assert evidence.alone is not None
    if not any(convergence[m].has_converged is False for m in (candidate.method, evidence.alone)):
        return candidate
    later = np.subtract(_change_since_half(evidence, candidate.method, candidate.model, sites),
                        _change_since_half(evidence, evidence.alone, "personal", sites))
    half = replace(candidate, sites=[site._replace(gain=site.gain - change if np.isfinite(site.gain) else site.gain)
                                     for site, change in zip(candidate.sites, later, strict=True)])
    now, before = ([site.answer for site in advise([part], rule).sites]
                   for part in (candidate, half))
    return replace(candidate, is_settled=[a == b and bool(np.isfinite(change)) for a, b, change in zip(
        now, before, later, strict=True)])


def _change_since_half(evidence: Evidence, method: str, model: ModelKind, sites: Sites) -> Sequence[float]:
    """[K] by how much a method has gained at each site since half of its rounds, in units of the gains."""
    score = evidence.score if evidence.decides else "loss"
    sign = 1.0 if evidence.decides and evidence.higher_is_better else -1.0
    is_same = not any("personal" in site.facts.evidence.get(method, {}) for site in sites.sites)
    name = f"global_{score}" if model == "shared" and not is_same else score
    table = evidence.metrics
    rows = table[(table["method"] == method) & (table["metric"] == name) & (table["split"] == evidence.split)]
    keys = [*run_columns(rows), "party"]
    last = rows.groupby(keys)["round"].transform("max")
    early = rows[rows["round"] <= last / 2]
    early = early[early["round"] == early.groupby(keys)["round"].transform("max")]
    end, half = (part.groupby("party")["value"].mean() for part in (rows[rows["round"] == last], early))
    change = sign * (end - half)
    return [float(change.get(site.party, np.nan)) / site.facts.unit for site in sites.sites]

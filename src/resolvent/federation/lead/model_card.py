"""The model card of a run: plan, sites, rows, decisions, norms, refusals, privacy, versions and digests.

All figures are those of the run folder. The limits of the sites are not on it, because they do not leave the sites:
each site has a data sheet in its own folder of the run.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from resolvent.algorithms.combinators.combinator import contains
from resolvent.algorithms.combinators.private_parties import PrivateParties, is_private
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, RunRecord
from resolvent.comparisons.runs.run_folder import CHECKPOINTS
from resolvent.data.files.digests import file_digests
from resolvent.differential_privacy.account import ADJACENCY
from resolvent.differential_privacy.composition import record_epsilons
from resolvent.differential_privacy.parties import party_epsilon
from resolvent.errors import InputError
from resolvent.federation.protocol.cards import digest_of_text, write_card
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.limits import Limits
from resolvent.federation.protocol.names import NOTE_FILE
from resolvent.federation.secure.visibility import DELTA
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.tables.encoding import TableEncoding
from resolvent.xla.shapes import shapes_of

__all__ = ["MODEL_CARD", "model_card", "write_model_card"]

MODEL_CARD = "model-card"
_ADVICE = ("use", "answer", "reason", "model", "probability", "expected", "own")  # of a site in the summary
_METHOD = ("preset", "rounds", "bytes", "refused", "digests")


def write_model_card(folder: Path, record: RunRecord, metrics: pd.DataFrame, *,
                     job: FederationJob | None = None, lead: str = "",
                     experiment: FederatedExperiment | None = None,
                     sign: Callable[[bytes], Mapping[str, str]] | None = None) -> Path:
    """Write the card of a finished run into its folder; returns the path of the page.

    The card has the digest of every file of the run, so that ``check_card`` finds a bit that was changed in any
    of them.

    Args:
        job: the lead's order; None for a simulated run.
        experiment: the experiment, from which epsilon follows; None: epsilon is that of the run's metrics, if any.
        sign: signs bytes with the lead's key; None: the card is not signed.
    """
    return write_card(folder, MODEL_CARD, model_card(folder, record, metrics, job, lead, experiment), sign)


def model_card(folder: Path, record: RunRecord, metrics: pd.DataFrame, job: FederationJob | None, lead: str,
               experiment: FederatedExperiment | None) -> dict[str, Any]:
    """The facts of the card as plain values; see ``write_model_card``."""
    data, plain = record.data, record.plain()
    rows = dict(zip(data.parties, zip(data.train, data.test or (), strict=True), strict=True))
    sites = {site["name"]: site for site in plain["sites"]}
    text = (folder / EXPERIMENT_FILE).read_text("utf-8") if (folder / EXPERIMENT_FILE).is_file() else ""
    return {
        "title": record.title, "run": record.run, "finding": record.finding, "warnings": list(record.warnings),
        "notes": list(data.notes), "decided_by": record.score, "device": record.device,
        "plan": {} if job is None else {
            "digest": job.plan, "lead": lead, "sites": list(job.sites), "quorum": job.quorum, "deadline": job.deadline,
            "lost_state": job.lost_state, "policy": job.policy},
        "experiment": {"seeds": record.seeds, "rounds": record.rounds, "sha256": digest_of_text(text)},
        "rows": {name: {"training": _at_least(train), "test": _at_least(test)} for name, (train, test) in rows.items()},
        "decisions": {name: {"test_rows": _at_least(site["test_rows"]), **{
            key: (site["advice"] or {}).get(key) for key in _ADVICE}} for name, site in sites.items()},
        "scores": {name: site["scores"] for name, site in sites.items()},
        "gains_over_training_alone": {name: site["gains"] for name, site in sites.items()},
        "means_of_sites": plain["means"] or {},
        "methods": {label: {key: facts.get(key) for key in _METHOD} for label, facts in plain["methods"].items()},
        "final_scores": {label: method.final for label, method in record.methods.items()},
        "norms_of_updates": _norms(metrics, data.parties),
        "privacy": {label: _privacy(folder, label, metrics, rows, experiment, method.rounds)
                    for label, method in record.methods.items()},
        "versions": dict(record.versions), "files": file_digests(folder, _files(folder))}


def _files(folder: Path) -> list[str]:
    """The names of all files of a finished run, without the card, and without what is removed when it is complete."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return [name for name in names if not name.startswith((f"{MODEL_CARD}.", f"{CHECKPOINTS}/")) and name != NOTE_FILE]


def _at_least(rows: int) -> int | str:
    """A number of rows; a small one is not named."""
    fewest = Limits().min_cell
    return int(rows) if rows == 0 or rows >= fewest else f"fewer than {fewest}"


def _norms(metrics: pd.DataFrame, parties: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Method and site -> median and largest norm of the updates that the server has received."""
    norms = metrics[metrics["metric"] == "update_norm"]
    result: dict[str, dict[str, Any]] = {}
    for method, party in norms[["method", "party"]].drop_duplicates().itertuples(index=False):
        values = norms[(norms["method"] == method) & (norms["party"] == party)]["value"]
        finite = values[np.isfinite(values)]
        result[f"{method}, {parties[int(party)]}"] = {
            "rounds": len(values), "median": float(finite.median()) if len(finite) else None,
            "largest": float(finite.max()) if len(finite) else None, "not_finite": len(values) - len(finite)}
    return result


def _privacy(folder: Path, label: str, metrics: pd.DataFrame, rows: Mapping[str, tuple[int, int]],
             experiment: FederatedExperiment | None, rounds: int) -> dict[str, Any]:
    """Epsilon of a method, or why there is none."""
    measured = metrics[(metrics["method"] == label) & (metrics["metric"] == "epsilon")]["value"]
    if len(measured):
        return {"epsilon": float(measured.max()), "of": "the simulated run"}
    if experiment is None or not is_private(algorithm := experiment.algorithm(label)):
        return {"epsilon": None, "of": "no differential privacy in the plan"}
    try:
        protects_sites = contains(algorithm, PrivateParties)
        return {"epsilon": _epsilon(folder, label, experiment, rows, rounds), "delta": DELTA,
                "of": "single sites" if protects_sites else "single rows, the largest of the sites",
                "adjacency": ADJACENCY["parties" if protects_sites else "records"]}
    except InputError as error:  # such as without dp-accounting
        return {"epsilon": None, "of": f"not computed: {error}"}


def _epsilon(folder: Path, label: str, experiment: FederatedExperiment, rows: Mapping[str, tuple[int, int]],
             rounds: int) -> float:
    algorithm = experiment.algorithm(label)
    if contains(algorithm, PrivateParties):
        return party_epsilon(algorithm, rate=1.0, rounds=rounds, delta=DELTA)  # no cohort counts as amplification
    encoding = ModelFolder(folder / "models" / folder_name(label)).encoding
    assert isinstance(encoding, TableEncoding)
    model = shapes_of(experiment.model(encoding).init, jax.random.key(0))
    return max(record_epsilons(algorithm, model, [train for train, _ in rows.values() if train], rounds=rounds,
                               delta=DELTA))

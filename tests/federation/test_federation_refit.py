"""The methods of a run of a federation, trained again on all rows: parity, rights of the sites, folders."""

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pytest

import nightly
from federation.harness import EXPERIMENT, SITES, SOLVER, Consortium, FakeSession, lead_note, limits
from resolvent import load
from resolvent.cli.refit import refit as refit_command
from resolvent.comparisons.after.predictions import predict_file
from resolvent.comparisons.after.refit import refit_run
from resolvent.comparisons.after.refit_folder import RefitFolder
from resolvent.comparisons.runs.load import load_fitted
from resolvent.comparisons.runs.record import read_record
from resolvent.data.partition.splits import join_splits
from resolvent.errors import InputError
from resolvent.federation.lead import refit as federation_refit
from resolvent.federation.lead import watchdog as federation_watchdog
from resolvent.federation.lead.refit import RefitOrder, write_federated_refit
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.simulator.run import simulate
from resolvent.tables.encoding_files import read_encoding
from resolvent.tables.party_tables import from_frame
from resolvent.tables.text_formats import TextFormat

TEXT = EXPERIMENT.replace("evaluate_every: 3", "evaluate_every: 1")


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """A complete run."""
    consortium = Consortium(tmp_path_factory.mktemp("refit"), text=TEXT, policy=REHEARSAL)
    assert consortium.serve() == {"status": "complete"}
    return consortium


@pytest.fixture
def consortium(complete, tmp_path):
    """The same run in other folders."""
    copy = Consortium(tmp_path, text=TEXT, policy=REHEARSAL)
    for name in ("out", *SITES):  # the server has a folder for each run
        shutil.copytree(complete.folder / name, tmp_path / name)
    copy.files = dict(complete.files)  # rounds are counted for each table
    return copy


def refit(consortium, method="FedAvg", rounds=2, limits=()):
    """Train again as ``resolvent model refit RUN KIT`` does, without an engine."""
    for site, limit in dict(limits).items():
        consortium.files[site] = replace(consortium.files[site], limits=limit)
    order = RefitOrder(consortium.folder / "out", method, rounds)
    outcome = consortium.serve(order.job(), results="refit")
    if outcome["status"] == "complete":
        write_federated_refit(order, consortium.folder / "refit")
    return order, outcome


@pytest.mark.when_changed
@nightly.parametrize("held_out", [(), ("test",)])
def test_the_models_are_those_of_a_simulation_on_all_rows(held_out, consortium):
    """With the agreed encoding; in the second case, the sites keep their test rows out of the training."""
    allowed = limits(refit_with_test_rows=not held_out)
    order, outcome = refit(consortium, limits=dict.fromkeys(SITES, allowed))
    assert outcome == {"status": "complete"}
    assert order.plan.rounds == {"alone": 2, "FedAvg": 2}
    encoding = read_encoding(consortium.folder / "aachen" / order.name / "encoding.json")
    before = read_encoding(consortium.folder / "aachen" / "mine-1" / "encoding.json")
    frame = consortium.frame
    if not held_out:
        age = frame["age"].to_numpy()
        assert encoding.numbers[0].mean == pytest.approx(age.mean())
        assert encoding.numbers[0].deviation == pytest.approx(age.std())
    assert encoding.numbers[0].mean != before.numbers[0].mean
    data = join_splits(from_frame(frame, "site", "ill", encoding=encoding, test=0.3), held_out)
    model = order.experiment.model(encoding)
    for label in ("alone", "FedAvg"):
        result = simulate(order.experiment.algorithm(label), model, data, rounds=2, progress=False)
        for k, site in enumerate(SITES):
            fitted = load(consortium.folder / site / "mine-1", method=label, site=site)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fitted.params,
                         result.personal_model(k))
            rows = data.sizes()[k]
            assert fitted.provenance.startswith(
                f"trained on {'' if held_out else 'all '}{rows} rows of {site}; accuracy"), fitted.provenance
            assert load(consortium.folder / site / "mine-1", site=site).method in ("alone", "FedAvg")
    shared = load(consortium.folder / "out", method="FedAvg")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), shared.params, result.server_model)
    assert f"trained on {data.sizes().sum()} rows of 2 sites" in shared.provenance
    notes = RefitFolder(consortium.folder / "out").rows["FedAvg"]
    assert {site: counts[0] for site, counts in notes.items()} == dict(zip(SITES, data.sizes(), strict=True))
    assert load(consortium.folder / "aachen" / "mine-1", method="FedAvg", site="aachen",
                before_refit=True).encoding == before


@pytest.mark.when_changed
@pytest.mark.parametrize(("limit", "message"), [
    (limits(max_rounds=1), "at most 1 round"), (limits(max_total_rounds=9), "allows 9 rounds"),
    (limits(algorithms=("fedavg",)), "algorithms fedavg")])
def test_the_limits_of_a_site_hold(limit, message, consortium):
    """The run has used 6 rounds, and the refit needs 4 more."""
    _, outcome = refit(consortium, limits={"berlin": limit})
    assert outcome["status"] == "refused"
    assert pd.Series([outcome["message"]]).str.contains(message).all(), outcome
    assert not (consortium.folder / "berlin" / "mine-1" / "refit").exists()
    assert load(consortium.folder / "berlin" / "mine-1", method="FedAvg", site="berlin").rounds == 3


@pytest.mark.when_changed
def test_a_site_without_the_run_and_wrong_orders_are_refused(consortium):
    order = RefitOrder(consortium.folder / "out", "FedAvg", 2)
    shutil.rmtree(consortium.folder / "berlin" / "mine-1")
    outcome = consortium.serve(order.job(), results="refit")
    assert outcome["status"] == "refused"
    assert "berlin" in outcome["message"]
    for wrong in ({"FedAvg": 4}, {"other": 1}, {"FedAvg": "2"}, {}, ["FedAvg"]):
        with pytest.raises(InputError, match="refit: give methods of the experiment"):
            order.experiment.with_refit(None, False).with_refit(wrong, False)
    private = TEXT.replace(SOLVER, "{name: DPSGD, learning_rate: 0.1, batch_size: 5, steps: 2}")
    experiment = Consortium(consortium.folder, text=private).experiment
    with pytest.raises(InputError, match="FedAvg is differentially private"):
        experiment.with_refit({"FedAvg": 2}, False)


def test_the_rounds_of_a_refit_are_those_of_the_best_validation_score(complete):
    metrics, summary = complete.metrics(), read_record(complete.folder / "out").plain()
    order = RefitOrder(complete.folder / "out")
    for label, rounds in order.plan.rounds.items():
        rows = metrics[(metrics["method"] == label) & (metrics["metric"] == summary["score"])
                       & (metrics["split"] == "validation") & (metrics["round"] > 0)]
        curve = {round_: (of_round.sort_values("party")["value"] * summary["data"]["train"]).sum()
                 for round_, of_round in rows.groupby("round")}
        assert rounds == max(curve, key=lambda round_: (curve[round_], -round_))


@pytest.mark.when_changed
def test_the_command_of_the_lead_continues_where_it_was_killed(consortium, monkeypatch):
    """The first job is lost; the command is killed before it writes the models; the second command starts no job."""
    session = FakeSession(consortium, {"stops": 0})
    monkeypatch.setattr(federation_watchdog, "open_session", session.open)
    run, notes = consortium.folder / "out", []
    note = lead_note(engine="nvflare", kit=consortium.folder)

    def command(rounds=2):
        return federation_refit.refit_federation(note, RefitOrder(run, "FedAvg", rounds), lambda event: None,
                                                 notify=notes.append)

    with monkeypatch.context() as patch:
        patch.setattr(federation_refit, "write_refit", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            command()
    jobs = len(session.jobs)
    assert not RefitFolder.of_run(run)
    assert command().rounds == {"alone": 2, "FedAvg": 2}
    assert len(session.jobs) == jobs
    assert load(run, method="FedAvg").rounds == 2
    assert [path.name for path in (run / "refit").iterdir() if path.name != "refit.json"] == [
        load_models(run).parent.name]
    shutil.rmtree(consortium.folder / "server")  # the server has a folder for each run
    command(rounds=1)
    assert len(session.jobs) > jobs
    assert load(run, method="FedAvg").rounds == 1
    with pytest.raises(InputError, match="name the lead's kit"):
        refit_run(run)


def load_models(run):
    return next(iter(RefitFolder(run).models.values()))


def test_a_lead_cannot_order_a_site_to_use_a_model():
    with pytest.raises(InputError, match="--anyway: with a kit the sites train again, and each decides"):
        refit_command(Path("runs/mine"), Path("kits/lead"), anyway=True)


@pytest.mark.when_changed
def test_a_site_that_the_shared_model_harms_predicts_with_its_own_after_a_refit(tmp_path):
    """Its labels are the others' with yes and no exchanged: FedAvg is worse than its majority class."""
    wide = {"limits": limits(max_leverage=None, max_parameters_per_row=None, max_total_rounds=None)}
    text = EXPERIMENT.replace("local,", "careful_local,")
    text = text.replace("rounds: 3", "rounds: 20").replace("evaluate_every: 3", "evaluate_every: 20")
    consortium = Consortium(tmp_path, dict.fromkeys(SITES, wide), text=text)
    path = tmp_path / "aachen.csv"
    frame = pd.read_csv(path)
    frame.assign(ill=frame["ill"].map({"yes": "no", "no": "yes"})).to_csv(path, index=False)
    assert consortium.serve() == {"status": "complete"}
    record, run = read_record(tmp_path / "aachen" / "mine-1"), tmp_path / "aachen" / "mine-1"
    (site,) = record.judged.values()
    assert site.facts.losses["FedAvg"] > site.facts.losses["majority class"]
    assert load_fitted(run, None, "aachen").method == "alone"
    shutil.rmtree(tmp_path / "server")
    _, outcome = refit(consortium)
    assert outcome == {"status": "complete"}
    assert load_fitted(run, None, "aachen").method == "alone"
    assert load_fitted(run, "FedAvg", "aachen").method == "FedAvg"  # only by its name


@pytest.mark.when_changed
def test_a_site_predicts_and_evaluates_rows_with_the_names_of_its_own_tables(tmp_path):
    """The model has them from the site's file; rows with the names of the federation have the same predictions."""
    wide = {"limits": limits(max_leverage=None, max_parameters_per_row=None)}
    own = {"age": "alter", "ill": "krank"}
    consortium = Consortium(tmp_path, {"aachen": {**wide, "columns": own}, "berlin": wide})
    path, run, outputs = tmp_path / "aachen.csv", tmp_path / "aachen" / "mine-1", {}
    frame = pd.read_csv(path)
    frame.rename(columns=own).to_csv(path, index=False)
    assert consortium.serve() == {"status": "complete"}
    for name, rows in {"own": frame.rename(columns=own), "federation": frame}.items():
        rows.to_csv(tmp_path / f"{name}-rows.csv", index=False, sep=";")
        predicted = predict_file(run, "FedAvg", "aachen", str(tmp_path / f"{name}-rows.csv"), tmp_path / f"{name}.csv",
                                 TextFormat())
        assert not predicted.remarks.unused
        outputs[name] = ((tmp_path / f"{name}.csv").read_text(), predicted.scores)
    assert outputs["own"] == outputs["federation"]
    assert outputs["own"][1].startswith("accuracy on 30 rows with labels")
    assert len(load_fitted(run, "FedAvg", "aachen").predict(frame.rename(columns=own))) == 30

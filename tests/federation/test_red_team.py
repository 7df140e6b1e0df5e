"""The red team: every attack succeeds where the truth is known, fails where it must, and agrees with a NumPy twin."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from ruamel.yaml import YAML

import resolvent as rv
from resolvent.algorithms.method import local_solvers
from resolvent.cli import site as commands
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.federation.engines.in_process import run_in_process
from resolvent.federation.lead.rehearsal import prepare_rehearsal, shipped_changes
from resolvent.federation.protocol import kits
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.limits import NO_LIMITS, Limits, read_refusal
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.plan_files import plan_of_file
from resolvent.federation.protocol.refusals import Refusal, outgoing
from resolvent.federation.site.dry_run import dry_run
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.own_batches import OwnBatches
from resolvent.federation.site.party import first_state
from resolvent.federation.site.table_versions import AnsweredVersion
from resolvent.red_team.answers import attack_answers, difference
from resolvent.red_team.closed_forms import DenseUpdate, dense_updates, rows_of_classes, rows_of_units
from resolvent.red_team.differencing import small_sums
from resolvent.red_team.gradient_matching import Target, match_update, unrolled
from resolvent.red_team.membership import attack_membership, judge_flags
from resolvent.red_team.recovery import InputScale, recovered_rows
from resolvent.red_team.red_team import _closed_form_guesses, attack_site
from resolvent.red_team.releases import released_replies, trained_model

pytestmark = pytest.mark.when_changed  # attacks of a plan, which no run uses
EXPERIMENT = """
data: {{label: ill}}
model: {model}
solver: {{name: SGD, learning_rate: 0.1, {solver}}}
algorithms: {{{algorithms}}}
rounds: {rounds}
evaluate_every: {rounds}
"""
ONE_ROW = "batch_size: 1, steps: 1"
ALLOWS_ONE_ROW = Limits(min_batch=1, max_parameters_per_row=None, min_rows=5, min_cell=1, max_leverage=None)


def table(rows, classes=2):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(rows, 6)).round(3), columns=[f"lab{j}" for j in range(6)])
    return frame.assign(ward=rng.choice(["east", "west"], rows), ill=[f"c{k}" for k in rng.integers(0, classes, rows)])


def site(folder, frame, limits=None, *, model="logistic", solver="batch_size: 10, epochs: 1", rounds=2,
         algorithms="FedAvg: fedavg"):
    """The file of a site, and an experiment."""
    frame.to_csv(folder / "patients.csv", index=False)
    (folder / "plan.yaml").write_text(EXPERIMENT.format(model=model, solver=solver, rounds=rounds,
                                                        algorithms=algorithms))
    file = SiteFile(table=str(folder / "patients.csv"), limits=limits or Limits())
    return file, experiment_of_file(str(folder / "plan.yaml"))


def numbers(inputs):
    return InputScale(np.ones(inputs, bool), np.ones(inputs))


# When a row comes back


@pytest.mark.parametrize("inputs", [1, 2, 12])
def test_a_guesser_from_the_marginals_gets_no_row(inputs):
    rows, scale = np.random.default_rng(100).normal(size=(60, inputs)), numbers(inputs)
    luck = [len(recovered_rows(np.random.default_rng(seed).normal(size=(500, inputs)), rows, scale))
            for seed in range(10)]
    assert sum(luck) <= 2  # of 600
    assert len(recovered_rows(rows[::-1] + 1e-9, rows, scale)) >= 55


def test_a_guess_counts_for_the_nearest_row_with_all_levels_right():
    rows = np.array([[0.0, 5.0, 1.0, 0.0], [0.05, 5.0, 1.0, 0.0], [3.0, -2.0, 0.0, 1.0]])
    scale = InputScale(np.array([True, True, False, False]), np.ones(4))
    assert recovered_rows(rows[[1]] + 1e-4, rows, scale).tolist() == [1]
    wrong_level = np.array([[3.0, -2.0, 1.0, 0.0]])
    assert recovered_rows(wrong_level, rows, scale).size == 0
    assert recovered_rows(rows[[2]] + [0.2, 0, 0, 0], rows, scale).size == 0
    assert recovered_rows(np.array([[np.nan] * 4]), rows, scale).size == 0


# Differencing


def test_rows_that_are_determined_are_those_of_a_twin_with_a_pseudoinverse():
    rng = np.random.default_rng(3)
    for _ in range(30):
        matrix = rng.integers(0, 2, (rng.integers(1, 7), 8))
        subsets = [frozenset(np.flatnonzero(row).tolist()) for row in matrix]
        projection = np.linalg.pinv(matrix) @ matrix
        single = {i for i in range(8) if np.linalg.norm(projection[i] - np.eye(8)[i]) < 1e-9}
        sets = small_sums(subsets, 3).sets
        assert {row for rows in sets if len(rows) == 1 for row in rows} == single
        for rows in sets:  # each of them is a sum that follows
            vector = np.isin(np.arange(8), [*rows]).astype(float)
            assert np.linalg.norm(vector @ projection - vector) < 1e-9


def test_a_split_whose_share_the_lead_varies_gives_all_rows():
    """The training rows were a prefix of one permutation: the differences of successive prefixes are single rows."""
    order = np.random.default_rng(0).permutation(40).tolist()
    prefixes = [frozenset(order[:n]) for n in range(41)]
    assert small_sums(prefixes, 5).rows == {*range(40)}
    assert not small_sums(prefixes[::5], 5).sets


def test_sum_and_sum_of_squares_of_two_rows_are_both_values():
    assert small_sums([frozenset(range(12)), frozenset(range(10))], 2).rows == {10, 11}
    assert not small_sums([frozenset(range(13)), frozenset(range(10))], 2).rows


@pytest.mark.parametrize("min_cell", [1, 5])
def test_versions_of_the_table_give_a_row_without_min_cell_only(min_cell, tmp_path):
    frame = table(60).iloc[:, -4:]
    answers = []
    for rows in (59, 60):
        file, experiment = site(tmp_path, frame.head(rows), Limits(min_cell=min_cell, max_leverage=None))
        with dry_run(file, "aachen", experiment, tmp_path if answers else None) as dry:
            result = attack_answers(dry.folder / "table.versions", file)
            if not answers:
                shutil.copytree(dry.folder, tmp_path, dirs_exist_ok=True)  # with the journal
            answers.append(result)
    assert [result.rows for result in answers] == [0, min_cell == 1]
    assert answers[1].sums == (2 if min_cell == 1 else 0)


def test_counts_of_few_rows_are_found():
    """One level with three rows, a column of true/false with two, and a level that three of five new rows have."""
    frame = pd.DataFrame({"ward": ["east"] * 17 + ["icu"] * 3, "ill": [True] * 2 + [False] * 18})
    everybody, before = frozenset(range(20)), frozenset(range(15))
    text = {"name": "ward", "kind": "text", "levels": {"east": 17, "icu": 3}}
    truth = {"name": "ill", "kind": "boolean", "count": 20, "mean": 0.1, "squares": 1.8}

    def counts(versions):
        return difference(versions, frame, {}, 5).counts

    def version(rows, answer):
        return AnsweredVersion({"train": rows}, {f"column '{answer['name']}' of train rows, min_cell 5": answer})

    assert counts([version(everybody, text)]) == 1
    assert counts([version(everybody, truth)]) == 1
    assert counts([version(everybody, text | {"levels": {"east": 20, "icu": 0}})]) == 0
    assert counts([version(before, text | {"levels": {"east": 15}}),
                   version(everybody, text | {"levels": {"east": 18}})]) == 3  # 3 new ones, and 2 others
    with pytest.raises(ValueError, match="not known"):
        difference([AnsweredVersion({"train": before}, {"another question": 1})], frame, {}, 5)


# Closed forms


def softmax_step(weight, bias, x, y, rate):
    """One step of gradient descent on the mean cross-entropy, in NumPy: the update of weight and bias."""
    z = x @ weight.T + bias
    p = np.exp(z - z.max(axis=1, keepdims=True))
    error = (p / p.sum(axis=1, keepdims=True) - np.eye(len(bias))[y]) / len(x)
    return DenseUpdate(-rate * error.T @ x, -rate * error.sum(axis=0))


def test_a_step_on_one_row_is_the_row():
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(1, 7)), rng.normal(size=(3, 7)), rng.normal(size=3)
    np.testing.assert_allclose(rows_of_units(softmax_step(weight, bias, x, np.array([2]), 0.3)), np.repeat(x, 3, 0))


def test_a_step_at_equal_predictions_gives_the_rows_whose_class_is_unique():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(5, 7)), np.array([0, 3, 3, 1, 5])
    layer = softmax_step(np.zeros((6, 7)), np.zeros(6), x, labels, 0.3)
    np.testing.assert_allclose(rows_of_classes(layer, 0.3, 5), x[[0, 3, 4]], atol=1e-12)
    of_all = softmax_step(np.zeros((3, 7)), np.zeros(3), x, np.array([0, 1, 2, 2, 2]), 0.3)
    assert rows_of_classes(of_all, 0.3, 5).size == 0  # no class is absent
    later = softmax_step(rng.normal(size=(6, 7)), np.zeros(6), x, labels, 0.3)
    assert rows_of_classes(later, 0.3, 5).size == 0  # predictions differ


def test_the_first_layer_is_found_whatever_its_names_and_axes_are():
    tree = {"c": {"layer 0": {"weight": np.ones((8, 4)), "bias": np.ones(8)},
                  "layer 1": {"weight": np.ones((3, 8)), "bias": np.ones(3)}},
            "flax": {"kernel": np.ones((4, 5)), "bias": np.ones(5)}}
    assert [layer.weight.shape for layer in dense_updates(tree, 4)] == [(8, 4), (5, 4)]


# Searches


def image_problem(rows=8, classes=4, **solver):
    """Images of 4 x 4 pixels, a network, and what a server knows about the first work of a party."""
    rng = np.random.default_rng(10)  # not the seed of the first guesses
    data = rv.FederatedData.from_arrays([rng.normal(size=(rows, 4, 4))], [np.arange(rows) % classes], validation=0,
                                        test=0)
    problem = rv.problems.LearningProblem(rv.models.mlp(16, classes, width=32), data)
    algorithm = rv.fedprox(rv.SGD(0.1, **solver), mu=0.5)
    model, key = problem.model.init(jax.random.key(1)), jax.random.key(2)
    state = first_state(algorithm, problem, model, jax.random.key_data(key))
    reply = algorithm.phases[0].party(state, model, problem.oracle(jnp.array(0)), key, jnp.ones(()))[1]
    update = jax.tree.map(jnp.subtract, reply, model)
    return Target(algorithm, problem, state, model, update, key, 0, 0)


def test_steps_that_can_be_differentiated_are_those_of_the_solver():
    target = image_problem(rows=10, batch_size=3, epochs=2)
    algorithm, is_exact = unrolled(target.algorithm, 10)
    reply = algorithm.phases[0].party(target.state, target.message, target.problem.oracle(jnp.array(0)), target.key,
                                      jnp.ones(()))[1]
    update = jax.tree.map(jnp.subtract, reply, target.message)
    assert is_exact
    for new, old in zip(jax.tree.leaves(update), jax.tree.leaves(target.update), strict=True):
        np.testing.assert_allclose(new, old, atol=1e-6)
    assert not unrolled(rv.fedavg(rv.solvers.adam(0.1)), 10)[1]


@pytest.mark.nightly
@pytest.mark.parametrize(("work", "rows", "succeeds"), [
    ({"batch_size": 2, "steps": 1}, 8, True), ({"batch_size": 4, "epochs": 1}, 8, False)])
def test_a_search_brings_back_the_images_of_a_small_step_only(work, rows, succeeds):
    target = image_problem(rows, **work)
    result = match_update(target, searches=3, has_time=lambda: True)
    x = np.asarray(target.problem.x).reshape(rows, 16).astype(float)
    assert len(recovered_rows(result.guesses, x, numbers(16))) == 2 * succeeds


def test_a_search_without_the_labels_and_without_the_steps():
    """Targets are searched with the inputs; of Adam only the direction of the gradient is matched."""
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(6, 3))], [rng.normal(size=6)], validation=0, test=0)
    problem = rv.problems.LearningProblem(rv.models.linear(3), data)
    algorithm, key = rv.fedavg(rv.solvers.adam(0.1)), jax.random.key(2)
    model = problem.model.init(key)
    update = jax.tree.map(jnp.ones_like, model)
    state = first_state(algorithm, problem, model, jax.random.key_data(key))
    result = match_update(Target(algorithm, problem, state, model, update, key, 0, 0), searches=2,
                         has_time=lambda: True)
    assert result.searches == 2
    assert not result.is_exact
    assert result.guesses.shape == (12, 3)
    assert result.residual < 0.01


# Membership


def overfitted(seconds):
    rng = np.random.default_rng(0)
    data = rv.FederatedData.from_arrays([rng.normal(size=(120, 10))], [rng.integers(0, 2, 120)], validation=0, test=0.5)
    problem = rv.problems.LearningProblem(rv.models.mlp(10, 2, width=64), data)

    def train(problem):
        return trained_model(rv.fedavg(rv.SGD(0.3, batch_size=10, epochs=40)), problem, rounds=4, seed=0, sites=3,
                             draws_own_noise=False, clip=None, noise=0.0)

    times = iter([seconds] * 18)
    return attack_membership(problem, train(problem), train, lambda: next(times, -1.0))


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", [1e9, -1.0])
def test_members_of_a_model_that_has_learned_labels_by_heart_are_found(seconds):
    result = overfitted(seconds)
    assert (result.shadows > 0) == (seconds > 0)
    assert result.is_more_than_chance
    assert result.true_positive.low > result.false_positive.high


def test_flags_that_ignore_membership_are_seldom_more_than_chance():
    rng = np.random.default_rng(0)
    is_member = np.arange(100) < 60
    result = [judge_flags(rng.random(100) < 0.5, is_member, 8).is_more_than_chance for _ in range(60)]
    assert sum(result) <= 2


# What is attacked is what leaves


@pytest.mark.nightly
def test_the_last_model_is_that_of_a_federation_of_equal_sites(tmp_path):
    """The messages of the red team, the quick path of shadow models and a federation in one process agree."""
    file, experiment = site(tmp_path, table(40), Limits(max_parameters_per_row=None),
                            solver="batch_size: 20, epochs: 1", rounds=3)
    with dry_run(file, "aachen", experiment, None) as dry:
        assert not dry.prepare()
        problem, algorithm = dry.run.problem, rv.fedavg(rv.solvers.GD(0.1, steps=2))
        object.__setattr__(dry.run.plan, "algorithm", lambda label: algorithm)
        dry.prepare()
        *_, last = released_replies(dry.run, "aachen", 0, 3)
        quick = trained_model(algorithm, problem, rounds=3, seed=0, sites=3, draws_own_noise=False, clip=None,
                              noise=0.0)
        data = dry.run.samples
    x, y = data.x[data.is_train], data.y[data.is_train]
    copies = rv.FederatedData.from_arrays([x] * 3, [y] * 3, validation=0, test=0, classes=["0", "1"])
    result = run_in_process(algorithm, rv.problems.LearningProblem(problem.model, copies), rounds=3)
    for reply, model, shared in zip(*map(jax.tree.leaves, (last.reply, quick, result.shared)), strict=True):
        np.testing.assert_allclose(reply, shared, atol=1e-6)
        np.testing.assert_allclose(model, shared, atol=1e-6)


def test_all_rows_come_back_from_steps_on_one_row_and_none_with_noise(tmp_path):
    file, experiment = site(tmp_path, table(20), ALLOWS_ONE_ROW, solver=ONE_ROW, rounds=60)
    report = attack_site(file, "aachen", experiment, None, seconds=30.0)
    assert report.methods[0].closed_form == report.training_rows == 12
    assert report.methods[0].rows == 12
    # How many regressions are asked depends on the time; they tell rows for validation and testing, too.
    assert report.rows == max(12, *(questions.rows for questions in report.questions))
    assert any("Change: an update to which one row contributes" in line for line in report.lines())
    noisy = replace(file, limits=replace(ALLOWS_ONE_ROW, clip=1.0, noise=1.0))
    assert attack_site(noisy, "aachen", experiment, None, seconds=0.5).rows == 0


def test_one_step_on_five_rows_is_refused_because_rows_would_come_back(tmp_path):
    """8 columns and 8 classes: 72 parameters are few for 240 training rows, and many for the 5 of an update."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(400, 8)).round(3), columns=[f"lab{j}" for j in range(8)])
    frame = frame.assign(ill=[f"c{k}" for k in rng.integers(0, 8, 400)])
    file, experiment = site(tmp_path, frame, solver="batch_size: 5, steps: 1")
    report = attack_site(file, "aachen", experiment, None)
    assert "72 parameters, more than 0.333 for each of the 5 training rows that an update reads" in report.refused
    with dry_run(file, "aachen", experiment, None) as dry, pytest.raises(Refusal) as refused:
        dry.prepare()
    assert "use more local steps, a larger batch_size" in read_refusal(outgoing(refused.value, "aachen"))[1]
    allowing = replace(file, limits=Limits(max_parameters_per_row=None))
    assert attack_site(allowing, "aachen", experiment, None, seconds=0.1).rows >= 1


def relu_updates(x, y, units, rate, rounds):
    """The gradients of the first layer in gradient descent on the mean cross-entropy of a network, in NumPy."""
    rng, rows = np.random.default_rng(0), len(x)
    w, b, v, c = rng.normal(size=(units, x.shape[1])) / 2, np.zeros(units), rng.normal(size=(2, units)), np.zeros(2)
    for _ in range(rounds):
        z = x @ w.T + b
        odds = np.exp(np.maximum(z, 0) @ v.T + c)
        errors = (odds / odds.sum(1, keepdims=True) - np.eye(2)[y]) / rows
        of_units = errors @ v * (z > 0)
        yield DenseUpdate(of_units.T @ x, of_units.sum(0))
        w, b = w - rate * of_units.T @ x, b - rate * of_units.sum(0)
        v, c = v - rate * errors.T @ np.maximum(z, 0), c - rate * errors.sum(0)


def test_rows_come_back_from_successive_updates_of_a_small_relu_network(tmp_path):
    """A row that a unit begins to let through; the default limits refuse networks without noise."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(72, 5))
    y = (x @ rng.normal(size=5) + rng.normal(size=72) > 0).astype(int)
    algorithm, problem = rv.fedavg(rv.solvers.GD(0.01, steps=2)), SimpleNamespace(x=x, sizes=[72])
    releases = [SimpleNamespace(update={"weight": layer.weight, "bias": layer.bias}, round=t)
                for t, layer in enumerate(relu_updates(x, y, 2, 0.01, 600))]
    for earlier, minimum, maximum in (([None] * 599, 0, 0), (releases[:-1], 5, 72)):
        guesses = [guess for release, before in zip(releases[1:], earlier, strict=True)
                   for guess in _closed_form_guesses(algorithm, problem, release, before)]
        assert minimum <= len(recovered_rows(np.concatenate(guesses), x, numbers(5))) <= maximum
    file, experiment = site(tmp_path, table(200), model="{name: mlp, width: 2}", solver="batch_size: 120, epochs: 1")
    with dry_run(file, "aachen", experiment, None) as dry, pytest.raises(Refusal, match="neither linear") as caught:
        dry.prepare()
    assert [*caught.value.limits] == ["networks"]
    for limits in (Limits(networks=True), Limits(clip=1.0, noise=1.0)):
        with dry_run(replace(file, limits=limits), "aachen", experiment, None) as dry:
            assert not dry.prepare()


def test_a_site_that_takes_part_orders_its_minibatches_itself(tmp_path):
    file, experiment = site(tmp_path, table(60))
    with dry_run(file, "aachen", experiment, None) as dry:
        dry.prepare()
        (solver,) = local_solvers(dry.run._parties[0]._algorithm)
    assert isinstance(solver.batches, OwnBatches)


def test_a_plan_beyond_the_limits_is_not_attacked(tmp_path):
    file, experiment = site(tmp_path, table(60), solver=ONE_ROW)
    report = attack_site(file, "aachen", experiment, None)
    assert "minibatches of 1 rows" in report.refused
    assert report.rows == 0
    assert "nothing was attacked" in "\n".join(report.lines())


def test_the_command_prints_counts_and_answers_nothing(tmp_path, monkeypatch, capsys):
    site(tmp_path, table(80), rounds=2, algorithms="alone: local, FedAvg: fedavg")
    (tmp_path / "site.yaml").write_text("table: patients.csv\n")
    monkeypatch.setattr(kits, "kit_note", lambda kit, kind: SimpleNamespace(name="aachen", kit=kit))
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    commands.check(tmp_path, tmp_path / "site.yaml", tmp_path / "plan.yaml", attack=0.5, format="json")
    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == 0
    assert [method["method"] for method in content["methods"]] == ["alone", "FedAvg"]
    assert content["methods"][0]["note"] == "it sends no reply"
    assert {path: path.read_bytes() for path in files} == files
    kinds = [entry["kind"] for entry in Journal(tmp_path / "runs" / JOURNAL).entries]
    assert kinds == ["file"]  # the secret of the rows' split, which later runs have too
    with pytest.raises(rv.errors.InputError, match="needs the lead's experiment file"):
        commands.check(tmp_path, tmp_path / "site.yaml", attack=0.5)


@pytest.mark.parametrize("privacy", [pytest.param({}, id="plain"), pytest.param(
    {"privacy": {"secure_sums": True}}, marks=pytest.mark.nightly, id="secure")])
def test_combined_questions_and_made_up_coefficients_bring_back_rows_of_an_open_site_only(privacy, tmp_path):
    """One plan has six poles; a round with steep coefficients is one row, and in secure sums no sum at all."""
    table(120).to_csv(tmp_path / "patients.csv", index=False)
    (tmp_path / "plan.yaml").write_text(write_yaml({"regression": {"formula": "ill ~ lab0 + ward", "rounds": 6},
                                                    **privacy}))
    plan = plan_of_file(str(tmp_path / "plan.yaml"))
    reports = [attack_site(SiteFile(table=str(tmp_path / "patients.csv"), limits=limits), "aachen", plan, None,
                           seconds=1e-3) for limits in (NO_LIMITS, Limits())]
    (made_up, scores, combined), clinic = reports[0].questions, reports[1].questions
    assert combined.asked == combined.answered >= 1
    assert combined.rows >= 5
    assert made_up.answered == (0 if privacy else 7)
    assert (made_up.rows > 4) == (not privacy)
    assert scores.rows >= 1
    assert clinic[1].answered == clinic[1].asked == 7
    assert clinic[2].answered < clinic[2].asked
    assert reports[1].rows == 0
    assert f"together they give {combined.rows} rows" in "\n".join(reports[0].lines())
    assert reports[1].plain()["questions"] == [questions._asdict() for questions in clinic]


# The experiments of the documentation and of the package

DOCUMENTATION = Path(__file__).parents[2] / "docs"


def documented_experiments():
    """(page, experiment of a lead) for every experiment with a table or without data; a lead's has neither."""
    for page in sorted(DOCUMENTATION.glob("*.md")):
        for block in re.findall(r"^```ya?ml\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            content = YAML(typ="safe").load(block) if re.search(r"^algorithms:", block, re.MULTILINE) else {}
            data = content.get("data")
            if isinstance(data, dict) and "label" in data:
                lead = {name: value for name, value in data.items() if name not in ("table", "party")}
                yield page.stem, {**content, "data": lead, "search": None, "seeds": None}


# Those of the simulator's pages are a lead's without the table.
@pytest.mark.parametrize(("page", "content"), [
    pytest.param(page, content, id=f"{page}-{number}", marks=() if page.startswith("fed") else pytest.mark.nightly)
    for number, (page, content) in enumerate(documented_experiments())])
def test_no_row_comes_back_from_an_experiment_of_the_documentation(page, content, tmp_path):
    """With the default limits."""
    text = write_yaml({name: value for name, value in content.items() if value is not None})
    (tmp_path / "mine.yaml").write_text(text)
    experiment = experiment_of_file(str(tmp_path / "mine.yaml"))
    frame = table(150).rename(columns={"ill": experiment.table.labels[0]})
    frame.to_csv(tmp_path / "patients.csv", index=False)
    report = attack_site(SiteFile(table=str(tmp_path / "patients.csv")), "aachen", experiment, None, seconds=1.0)
    assert not report.refused
    assert any(method.searches for method in report.methods)
    assert report.rows == report.differencing.sums == 0, [*report.lines()]


def test_the_experiment_of_the_tutorial_is_attacked():
    assert "federation-tutorial" in dict(documented_experiments())


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["digits"])
def test_no_row_comes_back_from_a_shipped_experiment(name, tmp_path):
    """The digits have more parameters than the default limit allows: without this limit, too, none comes back."""
    rehearsal = prepare_rehearsal(ExperimentFile.load(name, [*shipped_changes(name), "rounds=1", "evaluate_every=1"]))
    site_name, party = next(iter(rehearsal.sites.items()))
    settings = rehearsal.plan.table
    frame = rehearsal.frame[rehearsal.frame[settings.party] == party].drop(columns=settings.party)
    frame.to_parquet(tmp_path / "site.parquet")
    experiment = experiment_from_text(rehearsal.plan.text, name)
    for limits, is_refused in ((Limits(), True), (Limits(max_parameters_per_row=None), False)):
        file = SiteFile(table=str(tmp_path / "site.parquet"), limits=limits)
        report = attack_site(file, site_name, experiment, None, seconds=0.1)
        assert bool(report.refused) == is_refused
        assert report.rows == 0

"""The red team: every attack of this folder on what a plan would release at a site, within a budget of time.

It is above the federation, whose public interface and messages it uses.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from resolvent.algorithms import keys
from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.prepared import prepare
from resolvent.algorithms.method import local_solvers
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.names import VERSIONS
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.protection import adds_private_noise
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.protocol.wire import WireError
from resolvent.federation.site.dry_run import DryRun, dry_run
from resolvent.federation.site.party import first_state
from resolvent.federation.site.regression_run import RegressionRun
from resolvent.federation.site.site_run import SiteRun
from resolvent.problem.learning import LearningProblem
from resolvent.problem.solvers.solver import GD, SGD
from resolvent.red_team.answers import attack_answers
from resolvent.red_team.closed_forms import DenseUpdate, dense_updates, rows_of_classes, rows_of_units
from resolvent.red_team.combined import (
    Insiders,
    Questions,
    attack_coefficients,
    attack_combined,
    attack_scores,
    table_of,
)
from resolvent.red_team.gradient_matching import Target, match_update
from resolvent.red_team.membership import Membership, attack_membership
from resolvent.red_team.recovery import InputScale, recovered_rows
from resolvent.red_team.releases import Release, model_of, released_replies, trained_model
from resolvent.red_team.report import AttackReport, MethodAttack

Progress = Callable[[str], None]
_SITES = 5  # of the run that is attacked, at least: some algorithms need as many
_SEARCHES = 6
_ATTACKS = 3  # on a method, which share its time


class _Budget:
    """A time that begins to run when it is asked for, so that the compilation of a program is not part of it."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, 0.0

    def left(self) -> float:
        """The seconds that are left."""
        self._end = self._end or time.monotonic() + self._seconds
        return self._end - time.monotonic()

    def has_time(self) -> bool:
        """Whether a time is left."""
        return self.left() > 0


def attack_site(file: SiteFile, name: str, plan: Plan, runs: Path | None, *,
                seconds: float = 120.0, progress: Progress = lambda line: None) -> AttackReport:
    """Attack what a plan would release at a site. Nothing leaves the site.

    Args:
        runs: the folder of the site's runs, with the answers about its table; None: there are none.
        seconds: the time that the attacks on replies and models may take, apart from compilation. The methods of an
            experiment and their attacks have equal shares, and so have questions beside the plan; each attack makes its
            first step in any case.
    """
    try:
        with dry_run(file, name, plan, runs) as dry:
            progress("differencing over all answers about the table")
            differencing = attack_answers(dry.folder / VERSIONS, file)
            if conflicts := dry.prepare():
                raise InputError(f"the rounds cannot be attacked: {'; '.join(conflicts)}")
            methods, questions = list[MethodAttack](), list[Questions]()
            insiders, frame = Insiders(dry.folder, file, name), table_of(file)
            if isinstance(plan, FederatedExperiment):
                share = seconds / (_ATTACKS * len(plan.labels) + 1)
                with plan.precision():
                    methods = [_attack_method(dry, file, number, share, progress) for number in range(len(plan.labels))]
            progress("questions beside the plan")
            if isinstance(dry.run, RegressionRun):
                questions.append(attack_coefficients(insiders, dry.run))
            has_time = _Budget(seconds / (_ATTACKS * len(methods) + 1)).has_time
            questions += [attack_scores(insiders, frame), attack_combined(insiders, frame, plan, has_time)]
            return AttackReport(name, "", dry.run.training_rows, differencing, tuple(methods), tuple(questions))
    except Refusal as refusal:
        if refusal.code != RefusalCode.LIMITS:
            raise
        return AttackReport(name, str(refusal))


def _run_of(dry: DryRun) -> SiteRun:
    assert isinstance(dry.run, SiteRun)  # a plan that trains models
    return dry.run


def _attack_method(dry: DryRun, file: SiteFile, number: int, seconds: float, progress: Progress) -> MethodAttack:
    run = _run_of(dry)
    experiment = run.plan
    label = experiment.labels[number]
    algorithm, problem, rounds = experiment.algorithm(label), run.problem, experiment.rounds_of(label)
    sites = max(_SITES, file.limits.min_sites)
    note, budget = "", _Budget(seconds)
    guesses: list[NDArray[np.float64]] = []
    releases: list[Release] = []
    before: dict[int, Release] = {}
    data = run.samples
    x = np.asarray(problem.x)[data.rows_of(0, "train")].astype(np.float64)
    scale = InputScale.of(data)
    last: Release | None = None
    try:
        for release in released_replies(run, dry.name, number, sites):
            releases += [release] if not releases else []
            last = release
            guesses += _closed_form_guesses(algorithm, problem, release, before.get(release.phase))
            before[release.phase] = release
            if release.phase == 0:
                progress(f"{label}: closed forms, round {release.round + 1} of {rounds}")
            if budget.left() <= 0:
                break
    except (WireError, InputError) as error:
        note = f"the rounds end early: {error}"
    if last is None:
        return MethodAttack(label, rounds, note=note or "it sends no reply")
    in_closed_form = recovered_rows(np.concatenate([np.zeros((0, scale.deviation.size)), *guesses]), x, scale)

    progress(f"{label}: search of rows whose update is that of the first reply")
    target = Target(algorithm, problem, _first_party_state(experiment, algorithm, problem), releases[0].message,
                    releases[0].update, releases[0].key, releases[0].round, releases[0].phase)
    matching = match_update(target, searches=_SEARCHES, has_time=_Budget(seconds).has_time)
    by_search = recovered_rows(matching.guesses, x, scale)

    progress(f"{label}: membership inference")
    membership = _membership(dry, file, algorithm, last, sites, _Budget(seconds), progress)
    return MethodAttack(label, rounds, last.round + 1, len(in_closed_form), len(by_search), matching.searches,
                        matching.residual if np.isfinite(matching.residual) else None, matching.is_exact, membership,
                        len({*in_closed_form.tolist(), *by_search.tolist()}), note)


def _closed_form_guesses(algorithm: Algorithm, problem: LearningProblem, release: Release,
                         before: Release | None) -> list[NDArray[np.float64]]:
    """[G, d] guesses from one reply, and from its difference from the one before in the same phase."""
    inputs, samples = int(np.prod(problem.x.shape[1:])), int(problem.sizes[0])
    guesses = []
    if before is not None:
        guesses += [rows_of_units(DenseUpdate(*map(np.subtract, *layers))) for layers in zip(
            dense_updates(release.update, inputs), dense_updates(before.update, inputs), strict=True)]
    for layer in dense_updates(release.update, inputs):
        guesses.append(rows_of_units(layer))
        for solver in local_solvers(algorithm):
            if isinstance(solver, SGD | GD) and int(solver.count_steps(jnp.array(samples), jnp.ones(()))) == 1:
                batch = min(solver.batch_size, samples) if isinstance(solver, SGD) else samples
                rate = float(np.asarray(solver.at(jnp.array(release.round)).learning_rate))
                guesses.append(rows_of_classes(layer, rate, batch))
    return guesses


def _first_party_state(experiment: FederatedExperiment, algorithm: Algorithm, problem: LearningProblem) -> Any:
    model = jax.jit(problem.model.init)(keys.initial_key(experiment.seed))
    key = keys.initial_party_key(keys.initial_key(experiment.seed), jnp.array(0))
    return first_state(algorithm, problem, model, jax.random.key_data(key))


def _membership(dry: DryRun, file: SiteFile, algorithm: Algorithm, last: Release, sites: int,
                budget: _Budget, progress: Progress) -> Membership | None:
    """The membership inference on the last model that was released."""
    experiment, problem = _run_of(dry).plan, _run_of(dry).problem
    released = model_of(prepare(algorithm, problem), last)
    if released is None:
        return None

    def train(shadow: LearningProblem) -> Any:
        return trained_model(algorithm, shadow, rounds=last.round + 1, seed=experiment.seed, sites=sites,
                             draws_own_noise=adds_private_noise(algorithm) and experiment.policy.has_secret_noise,
                             clip=file.limits.clip, noise=file.limits.noise)

    return attack_membership(problem, released, train, budget.left, progress)

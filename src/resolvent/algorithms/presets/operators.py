"""Operator splitting: one scheme of which five algorithms are settings."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.methods.graph import Edges, GraphSplitting
from resolvent.algorithms.methods.splitting import DecentralisedSplitting, LocalStep, Relaxation, Splitting
from resolvent.arguments import checked
from resolvent.errors import InputError
from resolvent.problem.schedules import Constant, Schedule
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedpi", "fedrp", "fedsplit", "splitting"]


@checked
def splitting(solver: LocalSolver, *, eta: float | Schedule | None = None, alpha: float | Schedule = 1.0,
              beta: float | Schedule = 1.0, gamma: float | Schedule = 1.0, local_step: LocalStep = "proximal",
              decentralised: bool = False, edges: Edges = (), extra: bool = False) -> Algorithm:
    """Operator splitting: the scheme of which FedAvg, FedProx, FedSplit, FedPi and FedRP are settings.

    P_f is the proximal map of the party's loss, P_H the weighted mean over the parties. alpha, beta and gamma relax the
    three steps of a round. The settings (alpha, beta, gamma) are (1, 1, 1) for FedProx with mu = 1/eta, and for FedAvg
    with gradient steps; (2, 2, 1) for FedSplit; (2, 2, 1/2) for FedPi; (2, 1, 1) for FedRP. (1, 2, 1) is the paper's
    variant (22), with gradient steps (21).

    Problem: min over w of the average loss, for alpha = beta = 2, or if eta decreases to zero slowly enough (Theorem
    2); the regularised problem, see fedprox, for beta = 1 and a constant eta.
    Update: z = (1-alpha) u + alpha P_f(u), P_f(u) = argmin f_k + 1/(2 eta) |. - u|^2; w = (1-beta) z + beta P_H(z);
    u <- (1-gamma) u + gamma w. A party that is absent keeps its last z; the mean is over those present.
    Communication: down 1 model (and eta), up 1; a party stores nothing, or u and z if decentralised.
    Defaults: (1, 1, 1) with eta = 1, which is FedProx with mu = 1.
    Use when: you want a setting between the named ones, or a schedule for a relaxation.

    Args:
        solver: how a party computes P_f, exactly or approximately.
        eta: length of the proximal step, a number or a schedule: a party's penalty is 1/eta; default: 1. Gradient steps
            do not use it.
        alpha: over-relaxation of the parties' step, in [0, 2].
        beta: over-relaxation of the mean, in [0, 2].
        gamma: weight of the new iterate, in [0, 1].
        local_step: the proximal step, or the solver's plain gradient steps.
        decentralised: the parties store their iterates, and the server only averages.
        edges: pairs of neighbours, for runs without a server: P_H is replaced by the mixing matrix of the graph with
            Metropolis weights, and parties have equal weights. With one gradient step this is decentralised gradient
            descent, whose limit is biased. Simulated only.
        extra: EXTRA's correction on the graph, with which one gradient step finds the optimum with a constant rate.

    Raises:
        InputError: ``eta`` is set for gradient steps; ``eta`` is not positive, or a relaxation is outside its range;
            ``extra`` without a graph or with other settings; when a run starts: the graph is not connected.

    Example:
        >>> falling = rv.schedules.InversePower(1.0, power=0.75)
        >>> algorithm = rv.splitting(rv.solvers.GD(0.1, steps=10), eta=falling, alpha=1.5)
        >>> falling.finds_the_optimum
        True

        Four parties on a ring, without a server:

        >>> ring = ((0, 1), (1, 2), (2, 3), (3, 0))
        >>> algorithm = rv.splitting(rv.solvers.GD(0.1), local_step="gradient", edges=ring, extra=True)

    References:
        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (24)-(26), Table 1
        and, for absent parties, Algorithm 1. Shi, Ling, Wu, Yin: EXTRA: An Exact First-Order Algorithm for
        Decentralized Consensus Optimization, 2015.
    """
    if local_step == "gradient" and eta is not None:
        raise InputError(f"splitting(eta={eta}, local_step='gradient'): gradient steps do not use eta: leave it out "
                         "and set the solver's learning rate")
    relaxation = Relaxation(eta=1.0 if eta is None else eta, alpha=alpha, beta=beta, gamma=gamma)
    relaxations = [v.first if isinstance(v, Constant) else v for v in (alpha, beta, gamma)]
    if extra and not (edges and local_step == "gradient" and relaxations == [1, 1, 1]):
        raise InputError("splitting(extra=True) corrects gradient steps on a graph: set edges and "
                         "local_step='gradient', and leave alpha, beta and gamma at 1")
    if edges and decentralised:
        raise InputError("splitting(edges=..., decentralised=True): there is no server on a graph: leave one of the "
                         "two out")
    if edges:
        return GraphSplitting(solver=solver, relaxation=relaxation, local=local_step,
                              edges=edges, extra=extra)
    form = DecentralisedSplitting if decentralised else Splitting
    return form(solver=solver, relaxation=relaxation, local=local_step)


@checked
def fedsplit(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False) -> Algorithm:
    """FedSplit: Peaceman-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1).

    It composes the reflections 2 P_f - I of the parties' losses and 2 P_H - I of the mean.

    Problem: min over w of the average loss, with a constant eta.
    Update: z = 2 P_f(u) - u; u <- 2 P_H(z) - z, with P_f and P_H as in splitting.
    Communication: down 1 model (and eta), up 1; a party stores nothing, or u and z if decentralised.
    Defaults: eta = 1 does not depend on your losses; a good value is about 1/sqrt(mu L), with mu their strong convexity
    and L their smoothness.
    Use when: losses are strongly convex and smooth and all parties take part: only then is the step a contraction
    (Theorem 5). The authors of the operator-splitting paper see it become unstable with half of the parties absent; in
    doubt use FedPi.

    Args:
        solver: how a party computes P_f, exactly or approximately.
        eta: length of the proximal step.
        decentralised: the parties store their iterates, and the server only averages.

    Raises:
        InputError: ``eta`` is not positive.

    Example:
        >>> algorithm = rv.fedsplit(rv.solvers.GD(0.1, steps=10), eta=0.5)

    References:
        Pathak, Wainwright: FedSplit: An Algorithmic Framework for Fast Federated Optimization, NeurIPS 2020.

        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (15) and Theorem 5.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, decentralised=decentralised)


@checked
def fedpi(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False) -> Algorithm:
    """FedPi: Douglas-Rachford splitting, (alpha, beta, gamma) = (2, 2, 1/2).

    It averages the iterate with that of FedSplit, which makes it converge for all convex losses.

    Problem: min over w of the average loss, with a constant eta, for any convex losses.
    Update: z = 2 P_f(u) - u; u <- u/2 + P_H(z) - z/2, with P_f and P_H as in splitting.
    Communication: down 1 model (and eta), up 1; a party stores nothing, or u and z if decentralised.
    Defaults: eta = 1 does not depend on your losses; a good value is about 1/sqrt(mu L), with mu their strong convexity
    and L their smoothness.
    Use when: the exact minimiser of the average loss is wanted, local solves are accurate and all parties take part; it
    is stable in cases where FedSplit is not. With absent parties it does not converge to the solution: use feddr.

    Args:
        solver: how a party computes P_f, exactly or approximately.
        eta: length of the proximal step.
        decentralised: the parties store their iterates, and the server only averages.

    Raises:
        InputError: ``eta`` is not positive.

    Example:
        >>> algorithm = rv.fedpi(rv.solvers.GD(0.1, steps=10), eta=0.5, decentralised=True)

    References:
        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (16) and Theorem 6.
    """
    return splitting(solver, eta=eta, alpha=2.0, beta=2.0, gamma=0.5, decentralised=decentralised)


@checked
def fedrp(solver: LocalSolver, *, eta: float | Schedule = 1.0, decentralised: bool = False) -> Algorithm:
    """FedRP: the reflected party step and a plain mean, (alpha, beta, gamma) = (2, 1, 1).

    Its fixed points are those of FedProx; the reflection makes the steps longer.

    Problem: the regularised problem, see fedprox, with mu = 1/eta and a constant eta.
    Update: z = 2 P_f(u) - u; u <- P_H(z), with P_f and P_H as in splitting.
    Communication: down 1 model (and eta), up 1; a party stores nothing, or u and z if decentralised.
    Defaults: eta = 1 is FedProx's mu = 1; a decreasing schedule (``InversePower``) comes near the average loss.
    Use when: FedProx solves the right problem but is slow. Convergence is proved only for parties with a common
    minimiser and idempotent reflectors; in the paper's nonconvex experiments it is among the best, and unstable under
    Anderson acceleration.

    Args:
        solver: how a party computes P_f, exactly or approximately.
        eta: length of the proximal step; a decreasing schedule solves the average loss.
        decentralised: the parties store their iterates, and the server only averages.

    Raises:
        InputError: ``eta`` is not positive.

    Example:
        >>> algorithm = rv.fedrp(rv.solvers.GD(0.1, steps=10), eta=rv.schedules.InversePower(1.0))

    References:
        Malekmohammadi, Shaloudegi, Hu, Yu: An Operator Splitting View of Federated Learning, 2021, (23) and Theorem 7.
    """
    return splitting(solver, eta=eta, alpha=2.0, decentralised=decentralised)

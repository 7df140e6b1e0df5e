"""Methods for parties with different labels, which change the local loss or exchange a part of the model."""

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.personal_layers import PersonalLayers
from resolvent.algorithms.combinators.personal_use import FineTuned
from resolvent.algorithms.combinators.with_objective import WithObjective
from resolvent.algorithms.methods.local_objectives import (
    CalibratedLogits,
    FeatureDecorrelation,
    ModelContrast,
    NotTrueDistillation,
)
from resolvent.algorithms.methods.prototypes import FedProto
from resolvent.algorithms.presets.shared import fedavg
from resolvent.arguments import checked
from resolvent.problem.solvers.solver import LocalSolver

__all__ = ["fedbabu", "fedbn", "feddecorr", "fedlc", "fedntd", "fedproto", "moon"]

@checked
def moon(solver: LocalSolver, *, mu: float = 1.0, temperature: float = 0.5) -> Algorithm:
    """MOON: FedAvg whose local features stay near those of the shared model and away from the party's previous ones.

    Problem: that of fedavg, plus a term of local work that depends on the shared and on the previous model.
    Update: w_k = solve (1/n_k) sum_i [loss_i(w) + mu log(1 + exp((p_i - s_i)/temperature))] from w~, with the cosines
    s_i and p_i between the features of w for sample i and those of w~ and of the party's last w_k; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores its last w_k. Local work has three forward passes.
    Defaults: temperature = 0.5 (the authors'); mu = 1, one of the values 0.1, 1, 5, 10 that they tune.
    Use when: parties have different labels, and the model is a deep network with features.

    Args:
        solver: local solver of each party.
        mu: weight of the contrastive term; 0 is FedAvg.
        temperature: scale of the cosines, positive.

    Raises:
        InputError: a number is outside its range; when it runs, the model has no features.

    Example:
        >>> algorithm = rv.moon(rv.SGD(0.1, batch_size=20, epochs=1), mu=5.0)

    References:
        Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021, (3), (4) and Algorithm 1. The features are those
        before the last layer; the paper adds a projection head to the network, which is a part of the model here.
    """
    return WithObjective(fedavg(solver), ModelContrast(mu, temperature))


@checked
def fedntd(solver: LocalSolver, *, beta: float = 1.0, temperature: float = 1.0) -> Algorithm:
    """FedNTD: FedAvg that keeps what the shared model says about the classes which are not the sample's own.

    Problem: that of fedavg, plus a distillation of local work that depends on the shared model.
    Update: w_k = solve (1/n_k) sum_i [loss_i(w) + beta temperature^2 KL(q_i(w~) | q_i(w))] from w~, with q_i the
    softmax of the outputs over temperature without that of the class of sample i; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing. Local work has two forward passes.
    Defaults: beta = 1 and temperature = 1, the authors'.
    Use when: parties have different labels, and local work forgets the classes that a party lacks.

    Args:
        solver: local solver of each party.
        beta: weight of the distillation; 0 is FedAvg.
        temperature: the outputs are divided by it, positive.

    Raises:
        InputError: a number is outside its range; when it runs, there are fewer than three outputs.

    Example:
        >>> algorithm = rv.fedntd(rv.SGD(0.1, batch_size=20, epochs=1), beta=0.3)

    References:
        Lee, Jeong, Shin, Bae, Yun: Preservation of the Global Knowledge by Not-True Distillation in Federated Learning,
        NeurIPS 2022, section 4.
    """
    return WithObjective(fedavg(solver), NotTrueDistillation(beta, temperature))


@checked
def feddecorr(solver: LocalSolver, *, beta: float = 0.1) -> Algorithm:
    """FedDecorr: FedAvg whose local features are decorrelated, so that they do not collapse to few dimensions.

    Problem: that of fedavg, plus the mean squared correlation of the features.
    Update: w_k = solve mean loss(w) + beta/d^2 |K(w)|^2 on each minibatch from w~, with K the [d, d] matrix of the
    correlations of the d features in the minibatch; w~ <- mean of w_k.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: beta = 0.1, the authors'.
    Use when: parties have different labels. Minibatches of fewer samples than features estimate K badly.

    Args:
        solver: local solver of each party.
        beta: weight of the squared norm; 0 is FedAvg.

    Raises:
        InputError: ``beta`` is negative; when it runs, the model has no features.

    Example:
        >>> algorithm = rv.feddecorr(rv.SGD(0.1, batch_size=20, epochs=1), beta=0.3)

    References:
        Shi, Liang, Zhang, Tan, Bai: Towards Understanding and Mitigating Dimensional Collapse in Heterogeneous
        Federated Learning, ICLR 2023, section 4.
    """
    return WithObjective(fedavg(solver), FeatureDecorrelation(beta))


@checked
def fedlc(solver: LocalSolver, *, tau: float = 1.0) -> Algorithm:
    """FedLC: FedAvg whose local outputs have a margin that is larger for classes of which the party has few samples.

    Problem: that of fedavg with another local loss, which depends on the party's class counts.
    Update: w_k = solve the mean loss at the outputs minus tau n_kc^(-1/4) from w~, with n_kc the number of party k's
    samples of class c; w~ <- mean of w_k. The softmax is over all classes, as in public code; the sum in the paper's
    loss leaves the sample's own class out.
    Communication: down 1 model, up 1; a party stores nothing.
    Defaults: tau = 1; the authors tune it.
    Use when: parties lack some classes. A party does not train the outputs of a class of which it has no sample.

    Args:
        solver: local solver of each party.
        tau: weight of the margin; 0 is FedAvg.

    Raises:
        InputError: ``tau`` is negative; when it runs, there are fewer than two outputs.

    Example:
        >>> algorithm = rv.fedlc(rv.SGD(0.1, batch_size=20, epochs=1), tau=0.5)

    References:
        Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration, ICML
        2022, section 4.
    """
    return WithObjective(fedavg(solver), CalibratedLogits(tau))


@checked
def fedproto(solver: LocalSolver, *, classes: int = 10, features: int = 64, lam: float = 1.0) -> Algorithm:
    """FedProto: personal models that exchange only the mean features of each class.

    Problem: min over w_1, ..., w_N of the average of f_k(w_k) + lam/d |z(w_k) - C[y]|^2, with the features z and the
    mean features C[c] of all samples of class c.
    Update: w_k <- solve it from w_k; C[c] <- mean of z(w_k) over the samples of class c of the parties that reply, if
    they are weighted by size.
    Communication: down and up ``classes`` times ``features`` numbers; a party stores its model.
    Defaults: with equal weights of the parties, a party counts in C[c] by the share of its samples that are of class
    c. The paper's factor 1/|N_c| is left out, because it would shrink the means; a party predicts with its last layer,
    where the paper predicts the class of the nearest C[c]. lam = 1, the authors' value for most experiments; 10 classes
    and 64 features, those of ``rv.models.mlp(inputs, 10)``.
    Use when: parties have different labels and want models of their own, or models are large.

    Args:
        solver: local solver of each party.
        classes: number of classes.
        features: number of features of the model.
        lam: weight of the distance to the mean features; 0 is local training.

    Raises:
        InputError: a number is outside its range; when it runs, the model has another number of outputs or of
            features.

    Example:
        >>> algorithm = rv.fedproto(rv.SGD(0.1, batch_size=20, epochs=1), classes=10, features=64)

    References:
        Tan, Long, Liu, Zhou, Lu, Jiang, Zhang: FedProto: Federated Prototype Learning across Heterogeneous Clients,
        AAAI 2022, Algorithm 1.
    """
    return FedProto(solver, classes=classes, features=features, lam=lam)


@checked
def fedbabu(solver: LocalSolver, *, layers: tuple[str, ...] = ("head",),
            head_solver: LocalSolver | None = None) -> Algorithm:
    """FedBABU: only the body is trained, with the first, random head for all; parties fine-tune the head before use.

    Problem: min over the body b of the average of f_k(b, h_0), h_0 the first head.
    Update: b_k = solve f_k(., h_0) from b~; b~ <- mean of b_k; a party uses (b~, h_k), h_k = solve f_k(b~, .) from h_0.
    Communication: down the body, up the body; a party stores the first head.
    Defaults: the layers whose name begins with ``head``; one solver for both parts. The authors fine-tune the head or
    the whole model and report similar results.
    Use when: parties have different labels and want models of their own; a new party can fine-tune, too.

    Args:
        solver: local solver of each party.
        layers: patterns of the names of the head's layers, see ``PersonalLayers``.
        head_solver: local solver of the fine-tuning; default: the same solver.

    Raises:
        InputError: at the first round, a pattern matches no layer, or all layers are in the head.

    Example:
        >>> algorithm = rv.fedbabu(rv.SGD(0.1, batch_size=20, epochs=1), layers=("layer 1",))

    References:
        Oh, Kim, Yun: FedBABU: Towards Enhanced Representation for Federated Image Classification, ICLR 2022, section 4.
    """
    body = PersonalLayers(fedavg(solver), layers, trained=False)
    return FineTuned(body, solver if head_solver is None else head_solver, layers)


@checked
def fedbn(solver: LocalSolver, *, layers: tuple[str, ...] = ("*[Nn]orm*|bn*|*.bn*|*_bn*",)) -> Algorithm:
    """FedBN: every party keeps its own normalisation layers, parameters and statistics; all other layers are averaged.

    Problem: min over the other layers b of the average of min over p_k of f_k(b, p_k), up to FedAvg's bias.
    Update: (b_k, p_k) = solve f_k from (b~, p_k); b~ <- mean of b_k. The statistics of batch normalisation are those of
    the party's own minibatches (``ModelState`` with the policy ``private``).
    Communication: down and up the model without the normalisation layers; a party stores these layers.
    Defaults: the layers with ``norm`` or ``Norm`` in their path, and those with a name that begins with ``bn`` or has
    ``_bn`` in it: the usual names in Flax, Equinox and PyTorch. Layers of a ``Sequential`` have numbers: name them.
    Use when: the inputs of the parties differ, such as images of different scanners, and the labels do not.

    Args:
        solver: local solver of each party.
        layers: patterns of the names of the normalisation layers, see ``PersonalLayers``.

    Raises:
        InputError: at the first round, a pattern matches no layer, or all layers are normalisation layers.

    Example:
        >>> algorithm = rv.fedbn(rv.SGD(0.1, batch_size=20, epochs=1))

    References:
        Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
        2021, Algorithm 1.
    """
    return PersonalLayers(fedavg(solver), layers)

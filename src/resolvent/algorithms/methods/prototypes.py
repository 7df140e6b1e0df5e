"""FedProto: parties exchange the mean features of the classes instead of models."""

from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float
from typing_extensions import override

from resolvent.algorithms.algorithm import Info, Replies
from resolvent.algorithms.method import OnePhaseMethod, local_work
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.objective import Batch, Context, LocalObjective
from resolvent.problem.oracle import Oracle
from resolvent.problem.solvers.solver import LocalSolver
from resolvent.problem.subproblem import Subproblem


class Prototypes(NamedTuple):
    """The server's state and the message to every party."""

    means: Float[Array, "classes d"]  # the mean features of each class
    known: Bool[Array, " classes"]  # whether a sample of the class has been seen


class ClassSums(NamedTuple):
    """A party's reply: sums over its samples, divided by their number n_k."""

    features: Float[Array, "classes d"]
    counts: Float[Array, " classes"]


class NearPrototypes(LocalObjective):
    """The loss plus lam/d times the squared distance of the features to the prototype of the sample's class."""

    lam: ArrayLike

    @override
    def __call__(self, params: Vector, batch: Batch, context: Context) -> Float[Array, " B"]:
        outputs, features = context.outputs_and_features(params, batch)
        classes, (means, known) = context.classes(batch), context.prototypes
        _check_shapes(outputs, features, means.shape)
        squared = jnp.mean((features - means[classes]) ** 2, axis=-1)
        return context.losses(outputs, batch) + self.lam * jnp.where(known[classes], squared, 0)


class FedProto(OnePhaseMethod):
    """FedProto: each party trains its own model, whose features are drawn to the mean features of all parties.

    .. code-block:: text

        party:   w_k <- solve (1/n_k) sum_i [loss_i(w) + lam/d |z_i(w) - C[y_i]|^2] from w_k
                 reply, for each class, sum of z_i(w_k) over its samples / n_k, and their number / n_k
        server:  C[c] <- weighted sum of the first / weighted sum of the second; classes without samples keep theirs

    z_i are the features of sample i. In the first round no prototype is known, and w_k is trained on the loss alone.
    As in the authors' code the distance is the mean over the d coordinates. With replies weighted by size, C[c] is the
    mean over all samples of class c of the parties that reply: the paper's weights without its factor 1/|N_c|, which
    would shrink the means. With equal weights a party counts by the share of its samples that are of class c. A party
    predicts with its last layer, where the paper predicts the class of the nearest prototype.
    """

    solver: LocalSolver
    classes: Annotated[int, "[1, inf)"] = eqx.field(static=True, kw_only=True)
    features: Annotated[int, "[1, inf)"] = eqx.field(static=True, kw_only=True)
    lam: Annotated[ArrayLike, "[0, inf)"] = eqx.field(kw_only=True, default=1.0)
    needs_individual_replies: ClassVar[bool] = False
    replies_models: ClassVar[bool] = False

    @override
    def init(self, w0: Vector, shares: Float[Array, " N"]) -> Prototypes:
        return Prototypes(jnp.zeros((self.classes, self.features), tree.dtype(w0)), jnp.zeros(self.classes, bool))

    @override
    def init_party(self, w0: Vector, oracle: Oracle, key: Array) -> Vector:
        return w0

    @override
    def party(self, model: Vector, message: Prototypes, oracle: Oracle, key: Array,
              effort: Float[Array, ""]) -> tuple[Vector, ClassSums, Info]:
        near = oracle.with_objective(NearPrototypes(self.lam), prototypes=message)
        w, info = local_work(self.solver, Subproblem(near, model), model, key, effort)
        sums = oracle.total(lambda batch, model: self._class_sums(w, Context(model, {}), batch),
                            ClassSums(*(jnp.zeros_like(message.means, shape=shape)
                                        for shape in (message.means.shape, (self.classes,)))))
        return w, jax.tree.map(lambda leaf: leaf / oracle.samples.astype(leaf.dtype), sums), info

    def _class_sums(self, w: Vector, context: Context, batch: Batch) -> ClassSums:
        outputs, features = context.outputs_and_features(w, batch)
        _check_shapes(outputs, features, (self.classes, self.features))
        is_class = (context.classes(batch)[:, None] == jnp.arange(self.classes)) & batch.mask[:, None]
        weights = is_class.astype(tree.dtype(w))
        return ClassSums(jnp.matmul(weights.T, features, precision="highest"), jnp.sum(weights, axis=0))

    @override
    def server(self, state: Prototypes, replies: Replies, key: Array) -> tuple[Prototypes, Info]:
        mean: ClassSums = replies.mean()
        has_samples = mean.counts > 0
        new = mean.features / jnp.where(has_samples, mean.counts, 1)[:, None]
        means = jnp.where(has_samples[:, None], new, state.means).astype(state.means.dtype)
        return Prototypes(means, state.known | has_samples), {"classes_with_samples": jnp.sum(has_samples)}

    @override
    def personal_model(self, state: Vector, message: Prototypes, oracle: Oracle) -> Vector:
        return state

    @override
    def server_model(self, state: Prototypes) -> None:
        return None


def _check_shapes(outputs: Any, features: Array, expected: tuple[int, ...]) -> None:
    """Refuse outputs and features of other numbers than those of the prototypes, [classes, features]."""
    shapes = (outputs.shape[1:], features.shape[1:])
    if shapes != ((expected[0],), (expected[1],)):
        raise InputError(f"fedproto(classes={expected[0]}, features={expected[1]}), but for a sample the model has "
                         f"outputs {list(shapes[0])} and features {list(shapes[1])}: set the two to their numbers")

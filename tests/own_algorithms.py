"""Algorithms of an outsider, from the public module of parts alone: they pass the same contract as the library's."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

import resolvent as rv
from resolvent.extend import LocalObjective, LocalSolver, Method, OnePhaseMethod, Phase, Subproblem, local_work, tree


class SafeState(NamedTuple):
    model: Any
    gradient: Any  # the mean gradient at the model
    candidate: Any  # the mean of the parties' models


class SafeSteps(Method):
    """Three exchanges: the mean gradient, corrected local work, and the losses by which the server accepts the result.

    A party keeps its last model, towards which it is pulled.
    """

    solver: LocalSolver
    pull: float = 0.1
    replies_models: ClassVar[bool] = False  # the last replies are losses
    needs_individual_replies: ClassVar[bool] = False

    def init(self, w0, shares):
        return SafeState(w0, jax.tree.map(jnp.zeros_like, w0), w0)

    def init_party(self, w0, oracle, key):
        return w0

    @property
    def phases(self):
        return (Phase(lambda state, k: state.model, self.gradient, self.average_gradients),
                Phase(lambda state, k: state, self.work, self.average_models),
                Phase(lambda state, k: state, self.losses, self.choose))

    def gradient(self, own, model, oracle, key, effort):
        return own, oracle.grad(model), {}

    def average_gradients(self, state, replies, key):
        return state._replace(gradient=replies.mean()), {}

    def work(self, own, message, oracle, key, effort):
        correction = tree.sub(message.gradient, oracle.grad(message.model))
        w, info = local_work(self.solver, Subproblem(oracle, own, self.pull, correction), message.model, key, effort)
        return w, w, info

    def average_models(self, state, replies, key):
        return state._replace(candidate=replies.mean()), {}

    def losses(self, own, message, oracle, key, effort):
        return own, (oracle.value(message.model), oracle.value(message.candidate)), {}

    def choose(self, state, replies, key):
        before, after = replies.mean()
        is_better = after <= before
        return state._replace(model=tree.where(is_better, state.candidate, state.model)), {"accepted": is_better}

    def personal_model(self, own, message, oracle):
        return message

    def server_model(self, state):
        return state.model


class MaskedState(NamedTuple):
    models: Any  # leaves [N, ...]
    masks: Any  # leaves [N, ...], which entries a party shares


class MaskedMessage(NamedTuple):
    model: Any
    mask: Any


class MaskedModels(OnePhaseMethod):
    """The server has a model and a mask for each party; an entry is averaged over the parties that share it."""

    solver: LocalSolver
    replies_models: ClassVar[bool] = False
    needs_individual_replies: ClassVar[bool] = True

    def init(self, w0, shares):
        parties = jnp.arange(len(shares))

        def masks(leaf):
            entries = jnp.arange(leaf.size).reshape(leaf.shape)
            return (entries + parties.reshape(-1, *(1,) * leaf.ndim)) % 3 > 0
        return MaskedState(tree.stack(w0, len(shares)), jax.tree.map(masks, w0))

    def message(self, state, k):
        return MaskedMessage(*tree.rows(tuple(state), k))

    def party(self, own, message, oracle, key, effort):
        w, info = local_work(self.solver, Subproblem(oracle, message.model), message.model, key, effort)
        return own, tree.sub(w, message.model), info

    def server(self, state, replies, key):
        moved = jax.tree.map(jnp.add, tree.rows(state.models, replies.index), replies.payload)
        models = replies.write(moved, state.models)

        def shared(model, mask):
            mean = jnp.sum(jnp.where(mask, model, 0), axis=0) / jnp.maximum(jnp.sum(mask, axis=0), 1)
            return jnp.where(mask, mean, model).astype(model.dtype)
        return MaskedState(jax.tree.map(shared, models, state.masks), state.masks), {}

    def personal_model(self, own, message, oracle):
        return message.model

    def server_model(self, state):
        return None


class ShortFeatures(LocalObjective):
    """The loss plus a penalty on the length of the features."""

    weight: float = 0.1

    def __call__(self, params, batch, context):
        outputs, features = context.outputs_and_features(params, batch)
        return context.losses(outputs, batch) + self.weight * jnp.mean(features**2, axis=-1)


class HeavyState(NamedTuple):
    model: Any
    velocity: Any


class HeavyServer(OnePhaseMethod):
    """Server momentum: the server steps along a decaying sum of the mean updates."""

    solver: LocalSolver
    decay: float = 0.5
    replies_models: ClassVar[bool] = True
    needs_individual_replies: ClassVar[bool] = False

    def init(self, w0, shares):
        return HeavyState(w0, jax.tree.map(jnp.zeros_like, w0))

    def message(self, state, k):
        return state.model

    def party(self, own, model, oracle, key, effort):
        w, info = local_work(self.solver, Subproblem(oracle, model), model, key, effort)
        return own, w, info

    def server(self, state, replies, key):
        velocity = tree.axpy(self.decay, state.velocity, tree.sub(replies.mean(), state.model))
        return HeavyState(tree.axpy(1, velocity, state.model), velocity), {}

    def personal_model(self, own, model, oracle):
        return model

    def server_model(self, state):
        return state.model


OWN = {
    "three exchanges with a party's state": SafeSteps,
    "models and masks of the parties at the server": MaskedModels,
    "a loss on features": lambda s: rv.combinators.WithObjective(rv.fedavg(s), ShortFeatures()),
    "server momentum": HeavyServer,
}

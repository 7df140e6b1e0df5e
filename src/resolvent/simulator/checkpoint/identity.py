"""What identifies a run: its settings, the user's own code, and the versions that computed it.

A checkpoint stores them, so that a run continues only from its own checkpoint, and the error names what differs.
"""

import platform
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from resolvent.errors import InputError, shorten
from resolvent.simulator.checkpoint.fingerprint import fingerprint_of
from resolvent.simulator.checkpoint.own_code import digest_of_code, own_parts
from resolvent.simulator.plan import Plan
from resolvent.xla.compiled_programs import free_programs, remembered

STORED_KEYS = ("fingerprint", "versions", "code")  # what a checkpoint stores of an identity

_UNTRACED = "code of the metrics"
_PACKAGES = ("resolvent", "jax", "equinox", "optax")
_ADVICE = "choose another folder, or start afresh without resume"


class RunIdentity(NamedTuple):
    """What a checkpoint must have in common with the run that continues from it.

    Attributes:
        fingerprint: part of the run (``algorithm``, ``data``, ``seed``, ...) -> SHA-256 of its settings.
        versions: package, or ``python`` or ``backend`` -> version or name.
        code: SHA-256 of the user's own code that is traced; empty if there is none.
        names: names of the functions and classes of this code; not stored.
    """

    fingerprint: Mapping[str, str]
    versions: Mapping[str, str]
    code: str
    names: Sequence[str] = ()

    def as_json(self) -> dict[str, Any]:
        """What a checkpoint stores."""
        return {key: getattr(self, key) for key in STORED_KEYS}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "RunIdentity":
        """The identity that a checkpoint stores."""
        return cls(*(stored[key] for key in STORED_KEYS))

    def check(self, stored: "RunIdentity", path: Path) -> None:
        """Compare with the identity that a checkpoint stores.

        Warns if a version differs: the rest of the run may then round differently.
        """
        names = [*self.fingerprint, *(name for name in stored.fingerprint if name not in self.fingerprint)]
        different = [name for name in names if self.fingerprint.get(name) != stored.fingerprint.get(name)]
        if different:
            raise InputError(f"the checkpoint {path} belongs to another run, with another value of "
                             f"{', '.join(different)}: {_ADVICE}")
        changed = {name: f"{name} {stored.versions.get(name, 'unknown')}, now {self.versions[name]}"
                   for name in self.versions if self.versions[name] != stored.versions.get(name)}
        if self.code != stored.code:
            own = shorten(", ".join(self.names)) or "this run"
            if "python" in changed:
                raise InputError(f"the checkpoint {path} was written with {changed['python']}. The code of {own} "
                                 "cannot be compared between versions of Python: continue with the version of the "
                                 f"first rounds, {_ADVICE}")
            raise InputError(f"the checkpoint {path} was computed by other code: {own} has been edited since. Undo the "
                             f"edit, {_ADVICE}")
        if changed:
            warnings.warn(f"the checkpoint {path} was written with {'; '.join(changed.values())}. The run continues, "
                          "but its results can differ in rounding from those of one version", stacklevel=2)


def identity_of(plan: Plan) -> RunIdentity:
    """The identity of a planned run. It reads all samples.

    The number of rounds, diagnostics, callbacks, the scheduler and the progress report may differ between the parts of
    a run. The metrics and the clock, which JAX does not trace, are identified by their settings and their code.
    """
    task, evaluation = plan.task, plan.evaluation
    metrics = {} if evaluation.metrics is None else evaluation.metrics.metrics
    untraced = (metrics, evaluation.clock, None if task.problem is None else type(task.problem).evaluate_shared)
    parts = {
        "algorithm": plan.algorithm,
        **({"problem": task.problem} if task.data is None else {"model": task.model, "data": task.data}),
        "participation": plan.participation,
        "seed": plan.seed,
        "memory": plan.memory,
        "evaluate_every": evaluation.every,
        "evaluate_parties": len(evaluation.parties),
        "metrics": metrics,
        "clock": evaluation.clock,
        "precision": "float64" if jax.config.values["jax_enable_x64"] else "float32",
    }
    traced = _traced_parts(plan)
    return RunIdentity({name: fingerprint_of(part) for name, part in parts.items()}
                       | {_UNTRACED: digest_of_code(untraced)},
                       {name: version(name) for name in _PACKAGES} | versions_of_code(),
                       digest_of_code(traced), own_parts(traced))


def forget_programs_of_edited_code(plan: Plan) -> None:
    """Clear JAX's caches if the user's own code has changed since JAX compiled it in this process.

    JAX keeps the value of a global variable that a function reads as a constant of the program, and finds the program
    by the function: after another value in a notebook it would run the program of the earlier one.
    """
    traced = _traced_parts(plan)
    if not (code := digest_of_code(traced)):
        return
    structure = jax.tree.structure(traced)
    if remembered.setdefault(structure, code) != code:
        free_programs()
        remembered[structure] = code


def _traced_parts(plan: Plan) -> tuple[Any, ...]:
    """The parts of a plan whose code JAX traces."""
    return plan.algorithm, plan.task.model, plan.task.problem, plan.participation


def versions_of_code() -> dict[str, str]:
    """The version of Python without its third number, and the backend: bytecode and rounding depend on them."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), "backend": jax.default_backend()}

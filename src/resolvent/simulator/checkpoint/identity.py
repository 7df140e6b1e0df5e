"""What identifies a run: its settings, its traced programs, and the versions that computed it.

A checkpoint stores them, so that a run continues only from its own checkpoint, and the error names what differs.
"""

import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax

from resolvent.errors import InputError, shorten
from resolvent.simulator.checkpoint.fingerprint import fingerprint_of
from resolvent.simulator.checkpoint.own_code import digest_of_code, own_parts
from resolvent.simulator.checkpoint.program import digests_of_programs, traced_parts
from resolvent.simulator.plan import Plan

STORED_KEYS = ("fingerprint", "versions", "programs", "code", "record")  # what a checkpoint stores of an identity

_UNTRACED = "code of the metrics"
_ADVICE = "choose another folder, or start afresh without resume"


class RunIdentity(NamedTuple):
    """What a checkpoint must have in common with the run that continues from it.

    Attributes:
        fingerprint: part of the run (``algorithm``, ``data``, ``seed``, ...) -> SHA-256 of its settings.
        versions: package, or ``python`` or ``backend`` -> version or name.
        programs: what is traced (the rounds, the scores, ...) -> SHA-256 of its program.
        code: SHA-256 of the user's own code that is traced; empty if there is none.
        record: names of what each round records, which is a part of its program.
        names: names of the functions and classes of this code; not stored.
        trace: function from such names to the programs that record them; not stored.
    """

    fingerprint: Mapping[str, str]
    versions: Mapping[str, str]
    programs: Mapping[str, str]
    code: str
    record: Sequence[str]
    names: Sequence[str] = ()
    trace: Callable[[Sequence[str]], Mapping[str, str]] | None = None

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
        changed = [f"{name} {stored.versions.get(name, 'unknown')}, now {self.versions[name]}" for name in self.versions
                   if self.versions[name] != stored.versions.get(name)]
        self._check_programs(stored, path, "; ".join(changed))
        if changed:
            warnings.warn(f"the checkpoint {path} was written with {'; '.join(changed)}. The run continues, but its "
                          "results can differ in rounding from those of one version", stacklevel=2)

    def _check_programs(self, stored: "RunIdentity", path: Path, changed: str) -> None:
        programs = self.programs
        if self.trace is not None and [*stored.record] != [*self.record]:
            programs = self.trace(stored.record)
        different = [name for name in programs if programs[name] != stored.programs.get(name)]
        if not different or (changed and self.code == stored.code):
            return  # another version writes the same code as another program
        effect = f"{' and '.join(different)} would now compute something else"
        if changed:
            raise InputError(f"the checkpoint {path} was written with {changed}, and with other code than that of "
                             f"{self._code}. Programs of two versions cannot be compared: continue with the versions "
                             f"and the code of the first rounds, {_ADVICE}")
        if self.code != stored.code:
            raise InputError(f"the checkpoint {path} was computed by other code: {self._code} has been edited since, "
                             f"and {effect}. Undo the edit, {_ADVICE}")
        if self.names:
            raise InputError(f"the checkpoint {path} was computed by another program: the code of {self._code} is the "
                             f"same, but {effect}. It reads something that differs between two processes, such as "
                             "np.random, the time, a file or an environment variable: pass that as a setting, and "
                             f"{_ADVICE}")
        raise InputError(f"the checkpoint {path} was computed by another program: the code of resolvent has been "
                         f"edited since, without another version, and {effect}: {_ADVICE}")

    @property
    def _code(self) -> str:
        """The names of the user's own code, for errors."""
        return shorten(", ".join(self.names)) or "this run"


def identity_of(plan: Plan) -> RunIdentity:
    """The identity of a planned run. It reads all samples.

    The number of rounds, diagnostics, callbacks, the scheduler and the progress report may differ between the parts of
    a run. What JAX does not trace, the metrics and the clock, is identified by its settings and its code.
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
    traced = traced_parts(plan)
    return RunIdentity({name: fingerprint_of(part) for name, part in parts.items()}
                       | {_UNTRACED: digest_of_code(untraced)},
                       {name: version(name) for name in ("resolvent", "jax")} | versions_of_code(),
                       digests_of_programs(plan), digest_of_code(traced), plan.recorded, own_parts(traced),
                       partial(digests_of_programs, plan))


def versions_of_code() -> dict[str, str]:
    """The version of Python without its third number, and the backend: a program and its bytecode depend on them."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), "backend": jax.default_backend()}

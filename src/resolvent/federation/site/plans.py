"""The plans that a site has received, and whether it acts on them.

A plan is what a lead orders: the experiment's text, the name of the run and, for a refit, its methods and rounds. It is
stored when it arrives, and a person decides about it with ``resolvent site approve`` or ``reject``. A rule in
``site.yaml`` decides about plans within it.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from resolvent.data.files.atomic_files import write_text
from resolvent.errors import InputError
from resolvent.federation.protocol.files import Approval
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.refusals import Refusal, RefusalCode

Verifier: TypeAlias = Callable[[bytes, Any], str]
"""(signed bytes, signature) -> the name of the lead; it raises ``InputError`` without a valid signature."""

PlanDecision: TypeAlias = Literal["waiting", "approved", "rejected"]
_SHOWN = 12  # characters of a digest


class StoredPlan(NamedTuple):
    """A plan that has arrived.

    Attributes:
        digest: SHA-256 of the plan.
        lead: name of the lead who has signed it.
        received: time of its arrival.
        decision: what the site has decided.
        reason: by whom or by what it was decided.
    """

    digest: str
    lead: str
    received: str
    run: str
    experiment: str
    decision: PlanDecision = "waiting"
    reason: str = ""

    @property
    def name(self) -> str:
        """The beginning of the digest, with which the commands name the plan."""
        return self.digest[:_SHOWN]


@dataclass(frozen=True)
class Plans:
    """The plans of a site."""

    folder: Path

    def all(self) -> list[StoredPlan]:
        """The plans, the oldest first."""
        plans = [self._read(path) for path in self.folder.glob("*.json")]
        return sorted(plans, key=lambda plan: (plan.received, plan.digest))

    def decide(self, name: str, decision: PlanDecision, reason: str) -> StoredPlan:
        """Store a decision.

        Args:
            decision: what the site decides.
        """
        matching = [plan for plan in self.all() if plan.digest.startswith(name)]
        if len(matching) != 1 or not name:
            known = ", ".join(plan.name for plan in self.all()) or "none"
            raise InputError(f"{len(matching)} plans begin with '{name}': name one of those that have arrived: {known}")
        return self._write(matching[0]._replace(decision=decision, reason=reason))

    def admit(self, digest: str, lead: str, run: str, experiment: Plan, rule: Approval | None) -> None:
        """Store a plan that has arrived, and check that the site has approved it."""
        path = self.folder / f"{digest}.json"
        plan = self._read(path) if path.is_file() else self._write(StoredPlan(
            digest, lead, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), run, experiment.text))
        if plan.decision == "waiting":
            obstacles = [] if rule is None else rule.obstacles(lead, experiment.table.labels, experiment.presets,
                                                               experiment.total_rounds)
            if obstacles:
                raise Refusal(RefusalCode.WAITING, f"plan {plan.name} of {lead} waits for resolvent site approve "
                              f"{plan.name}, because {'; '.join(obstacles)}")
            plan = self._write(plan._replace(decision="approved", reason="rule of site.yaml"))
        if plan.decision == "rejected":
            raise Refusal(RefusalCode.REJECTED, f"plan {plan.name} was rejected: {plan.reason}")

    def _write(self, plan: StoredPlan) -> StoredPlan:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.folder / f"{plan.digest}.json", json.dumps(plan._asdict(), indent=1))
        return plan

    @staticmethod
    def _read(path: Path) -> StoredPlan:
        content: Mapping[str, Any] = json.loads(path.read_text("utf-8"))
        return StoredPlan(**content)

"""The plans that a site has received, and whether it acts on them.

A plan is what a lead orders: the experiment's text, the name of the run and, for a refit, its methods and rounds. It is
stored when it arrives, and a person decides about it with ``resolvent site approve`` or ``reject``. A rule in
``site.yaml`` decides about plans within it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias

from resolvent.errors import InputError
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.refusals import Refusal, RefusalCode
from resolvent.federation.site.journal import Journal

Verifier: TypeAlias = Callable[[bytes, Any], str]
"""(signed bytes, signature) -> the name of the lead; it raises ``InputError`` without a valid signature."""

PlanDecision: TypeAlias = Literal["waiting", "approved", "rejected"]
_SHOWN = 12  # characters of a digest
_BY_RULE = "rule of site.yaml"


class StoredPlan(NamedTuple):
    """A plan that has arrived.

    Attributes:
        digest: SHA-256 of the plan.
        lead: name of the lead who has signed it.
        received: time of its arrival.
        decision: what the site has decided.
        reason: by whom or by what it was decided; of a plan that waits, why it does.
        applies: what of the site's file applied to it when it arrived.
    """

    digest: str
    lead: str
    received: str
    run: str
    experiment: str
    decision: PlanDecision = "waiting"
    reason: str = ""
    applies: Mapping[str, Any] = MappingProxyType({})

    @property
    def name(self) -> str:
        """The beginning of the digest, with which the commands name the plan."""
        return self.digest[:_SHOWN]


@dataclass(frozen=True)
class Plans:
    """The plans of a site, which are in its journal: when they arrived, and what was decided."""

    journal: Journal

    def all(self) -> list[StoredPlan]:
        """The plans, the oldest first."""
        plans = {entry["plan"]: StoredPlan(entry["plan"], entry["lead"], entry["time"], entry["run"],
                                           entry["experiment"], "waiting" if entry["reason"] else "approved",
                                           entry["reason"] or _BY_RULE, entry["applies"])
                 for entry in self.journal.of("plan")}
        for entry in self.journal.of("decision"):
            plans[entry["plan"]] = plans[entry["plan"]]._replace(decision=entry["decision"], reason=entry["reason"])
        return [*plans.values()]

    def decide(self, name: str, decision: PlanDecision, reason: str) -> StoredPlan:
        """Store a decision.

        Args:
            decision: what the site decides.
        """
        matching = [plan for plan in self.all() if plan.digest.startswith(name)]
        if len(matching) != 1 or not name:
            known = ", ".join(plan.name for plan in self.all()) or "none"
            raise InputError(f"{len(matching)} plans begin with '{name}': name one of those that have arrived: {known}")
        (plan,) = matching
        self.journal.append("decision", plan=plan.digest, lead=plan.lead, rows="", decision=decision, reason=reason)
        return plan._replace(decision=decision, reason=reason)

    def receive(self, digest: str, lead: str, run: str, experiment: str, reason: str,
                applies: Mapping[str, Any]) -> StoredPlan:
        """Store a plan that has arrived.

        Args:
            reason: why it waits for a person; empty if a rule of the site approves it.
            applies: what of the site's file applies to it.
        """
        self.journal.append("plan", plan=digest, lead=lead, run=run, experiment=experiment, rows="", reason=reason,
                            applies=dict(applies))
        return next(plan for plan in self.all() if plan.digest == digest)

    def admit(self, digest: str, lead: str, run: str, experiment: Plan, file: SiteFile) -> None:
        """Store a plan that has arrived, and check that the site has approved it.

        Args:
            file: the site's file, with its rule of approval and its limits.
        """
        rule = file.approval
        obstacles = [] if rule is None else rule.obstacles(lead, experiment.table.labels, experiment.presets,
                                                           experiment.total_rounds)
        plan = next((plan for plan in self.all() if plan.digest == digest), None)
        if plan is None:
            reasons = [*obstacles, *(misfits(file, experiment) if obstacles else ())]
            plan = self.receive(digest, lead, run, experiment.text, "; ".join(reasons), _applies(file))
        if plan.decision == "waiting":
            if obstacles:
                raise Refusal(RefusalCode.WAITING, f"plan {plan.name} of {lead} waits for resolvent site approve "
                              f"{plan.name}, because {'; '.join(obstacles)}")
            plan = self.decide(digest, "approved", _BY_RULE)
        if plan.decision == "rejected":
            raise Refusal(RefusalCode.REJECTED, f"plan {plan.name} was rejected: {plan.reason}")


def misfits(file: SiteFile, plan: Plan) -> list[str]:
    """What the columns of the site's table lack for a plan, for the person who decides; it does not leave the site."""
    from resolvent.federation.site.read_rows import choose_columns, read_frame  # here: a list of plans needs no table

    names_of = {local: name for name, local in (file.columns or {}).items()}
    try:
        names = map(str, read_frame(file, plan.table).columns)
        choose_columns([names_of.get(name, name) for name in names], plan.table, file.limits)
    except Refusal as error:
        return [f"the table of this site does not fit the plan: {error}"]
    return []


def _applies(file: SiteFile) -> dict[str, Any]:
    """What of a site's file applies to a plan: its table and columns, its shares of rows, and its limits."""
    return {"table": file.table, "columns": file.columns or {}, "validation": file.validation, "test": file.test,
            "profile": file.profile, "limits": file.limits.changes(file.profile)}

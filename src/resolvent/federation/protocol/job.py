"""The order of a lead to run an experiment, which a job of the engine carries to the server."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.exchange import RoundRules
from resolvent.federation.protocol.policy import FEDERATION


def plan_digest(run: str, experiment: str, refit: Any, keeps_validation: Any) -> str:
    """SHA-256 of a plan: all on which depends what the sites compute. The sites and the waits of a run can change."""
    plan = {"run": run, "experiment": experiment, "refit": refit, "keeps_validation": keeps_validation}
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def signed_content(plan: str, sites: Sequence[str], roster: Sequence[str]) -> bytes:
    """The bytes that a lead signs: the digest of a plan, the sites that take part, and all sites of a changed run."""
    return json.dumps({"plan": plan, "sites": list(sites), "roster": list(roster)}, sort_keys=True).encode()


def signed_size(plan: str, site: str, rows: int) -> bytes:
    """The bytes that a site signs: its number of training rows in a plan, by which its replies are weighed."""
    return json.dumps({"plan": plan, "site": site, "rows": rows}, sort_keys=True).encode()


@dataclass(frozen=True)
class FederationJob:
    """The lead's order to run an experiment.

    Attributes:
        run: name of the run. If the server has a run of this name, it is resumed. The lead's command names new runs,
            except refits, whose name says which run they belong to.
        quorum: number of sites that must answer in a phase; None: all.
        grace: seconds for which the server waits for further replies after the quorum.
        deadline: longest wait for replies in seconds.
        retries: how often a phase is repeated if fewer sites than the quorum have answered.
        lost_state: what happens to a site that has lost its state: ``refuse`` or ``restart``.
        policy: name of the lead's policy, for its record; every other participant has been given its own.
        refit: label -> number of rounds of the methods that are trained again on all rows; None: the experiment runs.
        keeps_validation: whether validation rows stay what they are in a refit.
        signature: the lead's signature of ``signed_content``; None: there is none yet.
        roster: if sites have joined or left the run, all sites that it has had, in the order in which they joined; a
            site keeps its position, the number of its party. Empty: ``sites``.
    """

    run: str
    experiment: str
    sites: tuple[str, ...]
    quorum: int | None = None
    grace: float = 0.0
    deadline: float = 600.0
    retries: int = 3
    lost_state: str = "refuse"
    policy: str = FEDERATION.name
    refit: Mapping[str, int] | None = None
    keeps_validation: bool = False
    signature: Mapping[str, str] | None = None
    roster: tuple[str, ...] = ()

    @property
    def plan(self) -> str:
        """The digest of the plan, see ``plan_digest``."""
        return plan_digest(self.run, self.experiment, self.refit, self.keeps_validation)

    @property
    def signed_content(self) -> bytes:
        """The bytes that the lead signs: the digest of the plan, and the names of the sites."""
        return signed_content(self.plan, self.sites, self.roster)

    @property
    def numbered(self) -> tuple[str, ...]:
        """The sites by number."""
        return self.roster or self.sites

    def with_sites(self, sites: Sequence[str]) -> "FederationJob":
        """The same order for other sites: the numbers of those that the run has had stay the same."""
        if tuple(sites) == self.sites:
            return self
        return replace(self, sites=tuple(sites), roster=tuple(dict.fromkeys((*self.numbered, *sites))))

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> "FederationJob":
        """The job that ``plain`` described."""
        try:
            return cls(**{**content, "sites": tuple(content["sites"]), "roster": tuple(content["roster"])})
        except (TypeError, KeyError) as error:
            raise InputError(f"the job is of another version of resolvent ({shorten(error)}): install the same version "
                             "for the lead, the server and the sites") from error

    def plain(self) -> dict[str, Any]:
        """Plain values, as they are sent."""
        return asdict(self)

    @property
    def rules(self) -> RoundRules:
        """How long the server waits, and for how many sites."""
        return RoundRules(quorum=self.quorum, grace=self.grace, deadline=self.deadline, retries=self.retries)

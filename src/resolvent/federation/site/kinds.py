"""What a site does for each kind of plan."""

from pathlib import Path
from typing import Any

from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.site.numbers_run import DescriptionRun, SurvivalRun
from resolvent.federation.site.plan_run import PlanRun
from resolvent.federation.site.planned_work import Membership
from resolvent.federation.site.regression_run import RegressionRun
from resolvent.federation.site.site_run import SiteRun

_RUNS: dict[type[Plan], type[PlanRun[Any]]] = {FederatedExperiment: SiteRun, FederatedRegression: RegressionRun,
                                               FederatedDescription: DescriptionRun, FederatedSurvival: SurvivalRun}


def begin_run(folder: Path, site: SiteFile, plan: Plan, membership: Membership, identity: Identity, *,
              lead: str = "", digest: str = "") -> PlanRun[Any]:
    """A plan at a site that is within the site's limits; nothing has left it.

    Raises:
        Refusal: the site does not take part.
    """
    run = _RUNS[type(plan)](folder, site, plan, membership, identity, lead=lead, digest=digest)
    run.check_limits()
    return run

"""The server of a federation: it runs a plan over a transport, and says how the run has ended.

It does not depend on an engine, and has no rows. Its files are enough to resume a run in another process.
"""

import logging
from pathlib import Path
from typing import Any

from resolvent.errors import InputError, shorten
from resolvent.federation.protocol.events import Completion, Observer
from resolvent.federation.protocol.exchange import FederationRefusedError, FederationStoppedError
from resolvent.federation.protocol.experiment import FederatedExperiment
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.numbers_plan import FederatedDescription, FederatedSurvival
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.regression import FederatedRegression
from resolvent.federation.protocol.run_status import STATUS_FILE
from resolvent.federation.protocol.transport import Transport, TransportError
from resolvent.federation.server.served_experiment import ServedExperiment
from resolvent.federation.server.served_numbers import ServedDescription, ServedSurvival
from resolvent.federation.server.served_plan import ServedPlan, titles_of_runs
from resolvent.federation.server.served_regression import ServedRegression
from resolvent.federation.server.watch import StatusFile, Watch, WatchedTransport

_log = logging.getLogger(__name__)
_SERVED: dict[type[Plan], type[ServedPlan[Any]]] = {FederatedExperiment: ServedExperiment,
                                                    FederatedRegression: ServedRegression,
                                                    FederatedDescription: ServedDescription,
                                                    FederatedSurvival: ServedSurvival}


def serve_federation(job: FederationJob, plan: Plan, transport: Transport, folder: Path,
                     results: Path, watch: Watch, *, kit: Path | None = None) -> dict[str, Any]:
    """Run a plan over a transport.

    Args:
        job: the lead's order.
        plan: the plan, bound with the parts that are installed at the server.
        transport: sends messages to the sites.
        watch: is told what happens, and what the run waits for.
        kit: the server's kit, in which the engine notes second sessions, and which has the list of revoked keys; None
            without an engine.

    Returns:
        The outcome: its ``status`` is ``complete``, ``refused`` or ``stopped``; the last two have a ``message``. The
        folder has the status of the run at any moment, see ``RunStatus``.

    Raises:
        TransportError: the engine does not move messages any more.
    """
    watched = WatchedTransport(transport, job.run, titles_of_runs(job, plan), plan.rounds, kit, watch.observe)
    watch.status = status = StatusFile(folder / STATUS_FILE, job.run, job.sites, watched)
    watch.expect(watched.waiting)
    try:
        outcome = _serve(job, plan, watched, folder, results, watch.observe)
        status.end(outcome["status"])
    finally:
        watch.status = None
    return outcome


def _serve(job: FederationJob, plan: Plan, transport: WatchedTransport, folder: Path,
           results: Path, observe: Observer) -> dict[str, Any]:
    try:
        plan = plan.with_refit(job.refit, job.keeps_validation)
        _SERVED[type(plan)](job, plan, transport, folder, observe).serve(results)
    except FederationRefusedError as error:
        return {"status": "refused", "message": str(error)}
    except (FederationStoppedError, InputError) as error:
        return {"status": "stopped", "message": str(error)}
    except TransportError:
        raise
    except OSError as error:
        return {"status": "stopped", "message": f"the server's disk cannot be used ({shorten(error)}): make room or "
                                                "correct its rights, then run the command again to continue"}
    except Exception as error:  # it would come again: starting the job again does not help
        _log.exception("the server's part of the run failed")
        return {"status": "stopped", "message": f"the server failed with {type(error).__name__}: {shorten(error)}; its "
                                                "log says where. Everything up to the last round is stored"}
    observe(Completion())
    return {"status": "complete"}

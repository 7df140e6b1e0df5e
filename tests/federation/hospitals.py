"""Three hospitals and their table, for plans on a table."""

import json

import numpy as np
import pandas as pd

from federation.harness import lead_of, signed
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.limits import NO_LIMITS
from resolvent.federation.protocol.plan_files import plan_from_text, table_plan_of_file
from resolvent.federation.protocol.policy import REHEARSAL
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.site import Site

SITES = ("aachen", "berlin", "kiel")


def table(rows=60, seed=0, more=10):
    """Patients of three hospitals; levels and dtypes differ, and the second has more rows unless ``more`` is 0.

    Hospitals with equally many rows share their programs.
    """
    rng = np.random.default_rng(seed)
    n = 3 * rows + more
    frame = pd.DataFrame({"site": np.repeat(SITES, [rows, rows + more, rows]), "age": rng.normal(50, 10, n),
                          "ward": rng.choice(["A", "B", "C"], n), "grade": rng.choice([1, 2, 3], n),
                          "sex": rng.choice(["f", "m"], n)})
    eta = -2 + 0.03 * frame["age"] + 0.5 * (frame["ward"] == "B") - 0.4 * (frame["sex"] == "m")
    frame["ill"] = np.where(rng.random(n) < 1 / (1 + np.exp(-eta)), "yes", "no")
    frame["cost"], frame["visits"] = rng.gamma(2, np.exp(eta) / 2), rng.poisson(np.exp(eta))
    frame["risk"] = 0.1 * np.log(frame["age"])
    frame["weeks"], frame["died"] = np.ceil(rng.exponential(30, n)), rng.integers(0, 2, n)
    frame["begin"] = np.floor((frame["weeks"] - 1) / 2)
    return frame


class Hospitals:
    """Sites with folders of their own, a lead's file and a server."""

    def __init__(self, folder, frame, settings, *, kind="regression", limits=NO_LIMITS, policy=REHEARSAL,
                 privacy=None):
        self.folder, self.frame, self.policy, self.limits = folder, frame, policy, limits
        folder.mkdir(exist_ok=True)
        self.file = folder / "mine.yaml"
        self.file.write_text(json.dumps({kind: settings} | ({"privacy": privacy} if privacy else {})))
        self.plan = table_plan_of_file(str(self.file), policy=policy)
        self.files, self.sent = {}, []
        for site in SITES:
            path = folder / f"{site}.csv"
            frame[frame["site"] == site].drop(columns="site").to_csv(path, index=False)
            self.files[site] = SiteFile(table=str(path), limits=limits)

    def serve(self, run="mine-1", observe=lambda event: None, change=lambda message: message, transport=InProcess,
              **changes):
        """Run the plan; ``change`` is what a server does to its messages."""
        job = signed(FederationJob(**{"run": run, "experiment": self.plan.text, "sites": SITES, **changes}))
        identities = local_identities(SITES)
        sites = {name: Site(name, self.folder / name, self.files[name], verify=lead_of, policy=self.policy,
                            identity=identities[name]) for name in SITES}

        def handler(name):
            def handle(message):
                answer = sites[name].handle(change(message))
                self.sent.append((name, bytes(answer)))
                return answer
            return handle

        try:
            plan = plan_from_text(job.experiment, job.run, policy=self.policy)
            return serve_federation(job, plan, transport({name: handler(name) for name in SITES}),
                                    self.folder / "server" / run, self.folder / "out", Watch(observe))
        finally:
            for site in sites.values():
                site.close()

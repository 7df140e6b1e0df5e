"""Three hospitals with the profile *clinic*: what a consortium does in its first weeks passes every default limit."""

import numpy as np
import pandas as pd
import pytest

from federation.harness import lead_of, signed, tutorial_text
from federation.hospitals import SITES
from resolvent.comparisons.after.calibrations import calibrate
from resolvent.comparisons.after.run_rows import rows_of_run
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.lead.refit import RefitOrder, write_federated_refit
from resolvent.federation.protocol.files import read_site
from resolvent.federation.protocol.job import FederationJob
from resolvent.federation.protocol.plan_files import plan_from_text, plan_of_file
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.samples import samples_of_run
from resolvent.federation.site.site import Site

REGRESSIONS = {  # all but the first are not linear: their rounds need secure sums
    "linear": {"formula": "stay ~ age + sex + ward"},
    "logistic": {"formula": "readmitted ~ age + sex + ward"},
    "poisson": {"formula": "visits ~ age + bmi + sex", "family": "poisson"},
    "cox": {"formula": "Surv(days, died) ~ age + creatinine + ward"},
    "interactions": {"formula": "readmitted ~ age*sex + creatinine"},
}


def patients(rows, seed):
    """Admissions of hospitals with these numbers of rows."""
    rng, n = np.random.default_rng(seed), sum(rows)
    frame = pd.DataFrame({
        "site": np.repeat(SITES, rows), "age": rng.normal(62, 12, n).round(1), "bmi": rng.normal(27, 4, n).round(1),
        "sex": rng.choice(["f", "m"], n), "ward": rng.choice(["east", "west", "north"], n, p=[0.5, 0.3, 0.2]),
        "creatinine": np.exp(rng.normal(0, 0.3, n)).round(2)})
    eta = 0.04 * (frame["age"] - 62) + 0.5 * (frame["ward"] == "north") + 0.8 * (frame["creatinine"] - 1)
    event, censored = rng.exponential(60 * np.exp(-eta / 2)), rng.uniform(20, 120, n)
    return frame.assign(
        readmitted=np.where(rng.random(n) < 1 / (1 + np.exp(1 - eta)), "yes", "no"),
        visits=rng.poisson(np.exp(eta / 3)),
        stay=(1 + rng.gamma(4, np.exp(eta / 5))).round(1), days=np.ceil(np.minimum(event, censored)),
        died=(event <= censored).astype(int))


class Clinics:
    """Sites whose files say nothing but the table and its splits: profile and limits are the defaults."""

    def __init__(self, folder, frame):
        self.folder, self.identities = folder, local_identities(SITES)
        for site in SITES:
            frame[frame["site"] == site].drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
            (folder / f"{site}.yaml").write_text(f"table: {site}.csv\nvalidation: 0.2\ntest: 0.3\n")
        self.files = {site: read_site(folder / f"{site}.yaml") for site in SITES}

    def serve(self, job):
        sites = {name: Site(name, self.folder / name, self.files[name], verify=lead_of,
                            identity=self.identities[name]) for name in SITES}
        try:
            return serve_federation(
                signed(job), plan_from_text(job.experiment, job.run), InProcess({s: sites[s].handle for s in SITES}),
                self.folder / "server" / job.run, self.folder / "out" / job.run, Watch(lambda event: None))
        finally:
            for site in sites.values():
                site.close()

    def run(self, name, text):
        path = self.folder / f"{name}.plan.yaml"
        path.write_text(text)
        return self.serve(FederationJob(name, plan_of_file(str(path)).text, SITES))


SUMS = "privacy: {secure_sums: true}\n"
LEVELS = "levels: {readmitted: ['no', 'yes'], sex: [f, m], ward: [east, west, north]}"


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "is_secure"), [((250, 300, 400), False), ((200, 200, 200), True)],
                         ids=["plain", "200 rows each, in secure sums"])
def test_three_hospitals_need_no_other_limit(rows, is_secure, tmp_path):
    """With 200 rows each, secure sums: in plain a site refuses the refit, by a leverage of 0.58."""
    clinics = Clinics(tmp_path, patients(rows, 2))
    text = tutorial_text().replace("{label: readmitted}", "{label: readmitted, features: [age, bmi, sex, ward, "
                                   f"creatinine]{', ' + LEVELS if is_secure else ''}}}")
    if is_secure:  # a personal model is chosen on single replies
        text = text.replace("  robust interpolation: robust_interpolation\n", "") + SUMS
    outcomes = {"tutorial": clinics.run("tutorial", text)}
    for name, settings in REGRESSIONS.items():
        plan = {"regression": settings, "privacy": None if name == "linear" else {"secure_sums": True}}
        outcomes[name] = clinics.run(name, write_yaml({key: value for key, value in plan.items() if value}))
    order = RefitOrder(tmp_path / "out" / "tutorial")
    outcomes["refit"] = clinics.serve(order.job())
    assert {name: outcome for name, outcome in outcomes.items() if outcome != {"status": "complete"}} == {}
    write_federated_refit(order, tmp_path / "out" / order.name)
    for site in SITES:
        run = tmp_path / site / "tutorial"
        made = calibrate(rows_of_run(run, "FedAvg", samples_of_run(run, tmp_path / f"{site}.yaml")))
        assert made.fitted(site).calibration.kind in ("none", "temperature", "platt", "isotonic")

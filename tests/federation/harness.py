"""A federation from its files to its run folders, without an engine: messages are function calls."""

import contextlib
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd

from resolvent.errors import InputError
from resolvent.federation.engines.in_process import InProcess
from resolvent.federation.engines.nvflare.lead import JobState
from resolvent.federation.protocol.events import PhaseReport
from resolvent.federation.protocol.experiment import experiment_from_text, experiment_of_file
from resolvent.federation.protocol.files import SiteFile
from resolvent.federation.protocol.job import FederationJob, signed_size
from resolvent.federation.protocol.limits import NO_LIMITS, Limits
from resolvent.federation.protocol.names import JOURNAL
from resolvent.federation.protocol.policy import FEDERATION, REHEARSAL
from resolvent.federation.protocol.wire import Message, decode, encode
from resolvent.federation.secure.primitives import local_identities
from resolvent.federation.server.serve import serve_federation
from resolvent.federation.server.watch import Watch
from resolvent.federation.site.journal import Journal
from resolvent.federation.site.site import Site

DOCS = Path(__file__).parents[2] / "docs"
SITES = ("aachen", "berlin")
SOLVER = "{name: GD, learning_rate: 0.1, steps: 2}"  # it compiles in a fraction of the time of minibatches
EXPERIMENT = f"""
data: {{label: ill, test: 0.3}}
model: logistic
solver: {SOLVER}
algorithms: {{alone: local, FedAvg: fedavg}}
rounds: 3
evaluate_every: 3
"""
# The tables are small.
LIMITS = Limits(min_rows=10, min_sites=2, min_cell=2, max_leverage=0.8, max_scores=None)


def limits(**changes):
    return replace(LIMITS, **changes)


def tutorial_text():
    """The experiment of the tutorial, as its page has it."""
    page = (DOCS / "federation-tutorial.md").read_text("utf-8")
    return next(block for block in re.findall(r"```yml\n(.*?)```", page, re.DOTALL) if "title: Readmission" in block)


def request_bytes(kind, run, to="aachen", **content):
    """A message about a plan, as the server sends it."""
    return encode(Message(kind, run, facts={"party": to, "content": content}))


def read_request(data):
    """The arguments of ``request_bytes``; None for a message of the rounds of a method."""
    message = decode(data)
    if "/" in message.run:
        return None
    return {"kind": message.kind, "run": message.run, "to": message.facts["party"], **message.facts["content"]}


def answer_of(reply):
    """The content of an answer to a message about a plan; ``{"refused": ...}`` of a refusal."""
    message = decode(reply)
    if message.kind == "refusal":
        return {"refused": {name: value for name, value in message.facts.items() if name not in ("answers", "party")}}
    assert message.kind == "answer"
    return message.facts["content"]


def lead_of(content, signature):
    """Checks a signature as a kit does; the tests of signatures have real ones."""
    if signature != {"signature": content.decode()}:
        raise InputError("the plan is not signed")
    return "lead@example.org"


def signed(job):
    return replace(job, signature={"signature": job.signed_content.decode()})


def signed_sizes(plan, rows):
    """Site -> its number of training rows with the signature of the site, as the server sends them."""
    return {site: {"rows": count, "signature": identity.sign(signed_size(plan, site, count))}
            for (site, count), identity in zip(rows.items(), local_identities(rows).values(), strict=True)}


def lead_note(**facts):
    """The kit of a lead, without files."""
    return SimpleNamespace(**{"name": "lead", "sign": lambda content: {"signature": content.decode()}} | facts)


def pooled_table():
    rng = np.random.default_rng(0)
    age = rng.normal(50, 12, 70)
    return pd.DataFrame({"site": np.repeat(SITES, [30, 40]), "age": age, "ward": rng.choice(["east", "west"], 70),
                         "ill": np.where(age + rng.normal(0, 5, 70) > 50, "yes", "no")})


class Consortium:
    """Sites with folders of their own, and a server; all can be started again."""

    def __init__(self, folder, files=None, text=EXPERIMENT, *, policy=FEDERATION):
        self.folder, self.frame, self.policy = folder, pooled_table(), policy
        (folder / "mine.yaml").write_text(text)
        self.experiment = experiment_of_file(str(folder / "mine.yaml"))
        self.files = {}
        for site in SITES:
            table = folder / f"{site}.csv"
            self.frame[self.frame["site"] == site].drop(columns="site").to_csv(table, index=False)
            self.files[site] = SiteFile(table=str(table), **{
                "test": 0.3, "limits": NO_LIMITS if policy is REHEARSAL else LIMITS, **(files or {}).get(site, {})})

    def site(self, name):
        return Site(name, self.folder / name, self.files[name], verify=lead_of, policy=self.policy,
                    identity=local_identities([*self.files])[name])

    def job(self, **changes):
        return FederationJob(**{"run": "mine-1", "experiment": self.experiment.text, "sites": SITES, **changes})

    def serve(self, job=None, observe=lambda event: None, results="out", transport=InProcess):
        job = signed(self.job() if job is None else job)
        sites = {site: self.site(site) for site in job.sites}
        handlers = {name: site.handle for name, site in sites.items()}
        try:
            experiment = experiment_from_text(job.experiment, job.run)
            return serve_federation(job, experiment, transport(handlers), self.folder / "server",
                                    self.folder / results, Watch(observe))
        finally:
            for site in sites.values():
                site.close()


    def metrics(self):
        return pd.read_parquet(self.folder / "out" / "metrics.parquet")


class Growing(Consortium):
    """A consortium with a third site, which joins later; its name is sorted between those of the others."""

    def __init__(self, folder):
        super().__init__(folder)
        rows = self.frame[self.frame["site"] == "berlin"].drop(columns="site").head(25)
        rows.assign(age=rows["age"] + 3).to_csv(folder / "baden.csv", index=False)
        self.files["baden"] = SiteFile(table=str(folder / "baden.csv"), test=0.3,
                                      limits=limits(max_parameters_per_row=0.5))

    def serve_until(self, sites, method=None, round_=None):
        """Serve until the process ends after a round; returns the outcome and the events."""
        events = []

        def observe(event):
            events.append(event)
            if isinstance(event, PhaseReport) and (event.method, event.round + 1) == (method, round_):
                raise KeyboardInterrupt

        try:
            return self.serve(self.job().with_sites(sites), observe), events
        except KeyboardInterrupt:
            return None, events


class FakeSession:
    """A server of the engine that loses the first job, stops further ones, and loses the connection once."""

    def __init__(self, consortium, failures):
        self.consortium, self.failures, self.jobs = consortium, failures, []

    @contextlib.contextmanager
    def open(self, note):
        yield self

    def connected_sites(self):
        return set(SITES)

    def submit(self, name, job, *classes):
        self.jobs.append(FederationJob.from_plain(job))
        return f"job {len(self.jobs)}"

    def state(self, job):
        if self.failures.pop("lost", False):
            raise ConnectionError("the server has ended")
        return JobState("the server does not have it", False, is_known=False) if job == "job 1" else JobState(
            "FINISHED:ABORTED", True)

    def progress(self, job, since):
        return [], None

    def fetch(self, job, target):
        if len(self.jobs) <= self.failures["stops"]:
            return None
        events = []
        outcome = self.consortium.serve(self.jobs[-1], events.append, results=target)
        return {**outcome, "events": [event.plain() for event in events]}


def named(event, ids):
    """The names of parties by their ids."""
    return [event.names[k] for k in ids]


def left(folder):
    """The entries of the answers before the rounds that have left a site, from the journal in its folder."""
    return [entry for entry in Journal(folder / JOURNAL).entries if "content" in entry]


def sent(folder):
    """The contents of these answers."""
    return [entry["content"] for entry in left(folder)]

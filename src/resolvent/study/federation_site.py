"""A site of a federation: it answers requests about its table, and trains. It does not depend on an engine.

Each run has a folder in the site's folder. It contains the agreed encoding, a store for each method, the site's models
after the last round, and the logs of all data that left the site.
"""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from resolvent.data.encoding import TableEncoding
from resolvent.data.encoding_files import from_plain, write_encoding
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.text_formats import TextFormat
from resolvent.deploy.party import Departure, Party
from resolvent.deploy.schema import SiteTable, read_site_table
from resolvent.deploy.stores import PartyStore
from resolvent.errors import InputError
from resolvent.math import tree
from resolvent.math.tree import Vector
from resolvent.problem.learning import LearningProblem
from resolvent.simulate.evaluate import evaluate_models
from resolvent.simulate.metrics_table import MetricsTable
from resolvent.simulate.model_folder import SavedModels
from resolvent.study.federation_experiment import FederatedExperiment, experiment_from_text
from resolvent.study.federation_files import SiteFile
from resolvent.study.federation_protocol import (
    RequestError,
    check_run_name,
    library_version,
    read_message,
    reply_bytes,
)
from resolvent.study.federation_results import FederationRun, MethodRun, write_run_folder

__all__ = ["Site", "SiteRun"]

_log = logging.getLogger(__name__)


class SiteRun:
    """One run at a site: the experiment, the table, and after the agreement a party for each method.

    Attributes:
        experiment: the experiment, bound with the parts that are installed at the site.
        table: the site's table.
    """

    def __init__(self, folder: Path, site: SiteFile, name: str, experiment: FederatedExperiment, party: int) -> None:
        self.experiment, self._folder, self._site, self._name = experiment, folder, site, name
        text = TextFormat(site.separator, site.decimal, site.encoding)  # type: ignore[arg-type]
        self.table: SiteTable = read_site_table(site.table, text, site.columns or {}, experiment.table, name, party)
        self._parties: list[Party] = []
        self._stores: list[PartyStore] = []
        self._problem: LearningProblem | None = None
        self._data: FederatedData | None = None

    def report(self) -> dict[str, Any]:
        """The report on the table, which leaves the site."""
        return self.table.report(self._site.min_count).plain()

    def prepare(self, encoding: TableEncoding) -> None:
        """Encode the rows, and make a party for each method.

        Raises:
            InputError: a row does not fit the encoding, or the experiment is beyond the site's limits.
        """
        self.close()
        self._folder.mkdir(parents=True, exist_ok=True)
        write_encoding(self._folder / "encoding.json", encoding)
        with self.experiment.file.precision():
            self._data = self.table.encode(encoding)
            self._problem = LearningProblem(self.experiment.model(encoding), self._data)
            for number, label in enumerate(self.experiment.labels):
                store = PartyStore(self._folder / "stores" / f"{number:02d}")
                self._stores.append(store)
                party = Party(self.experiment.algorithm(label), self._problem, store, rounds=self.experiment.rounds,
                              method=self.experiment.file.preset_of(label), name=self._name,
                              limits=self._site.limits, rehearsal=self.experiment.is_rehearsal)
                party.check()
                self._parties.append(party)

    def preview(self) -> list[Departure]:
        """The arrays and numbers that would leave the site in the rounds, by name and size."""
        return [departure._replace(message=f"{label}: {departure.message}")
                for label, party in zip(self.experiment.labels, self._parties, strict=True)
                for departure in party.preview()]

    def handle(self, method: int, message: bytes) -> bytes:
        """Answer a message of the rounds of a method."""
        if not 0 <= method < len(self._parties):
            raise RequestError(f"the run has no method {method}, or is not prepared")
        with self.experiment.file.precision():
            return self._parties[method].handle(message)

    def finish(self) -> list[str]:
        """Write the models and the site's own scores; returns the labels of the methods that are complete."""
        with self.experiment.file.precision():
            methods = self._complete_methods()
            if methods:
                write_run_folder(self._folder, self._own_results(methods))
        return [*methods]

    def _complete_methods(self) -> dict[str, MethodRun]:
        assert self._problem is not None
        like = jax.eval_shape(self._problem.init, jax.random.key(0))
        models = {label: store.read_models(like)
                  for label, store in zip(self.experiment.labels, self._stores, strict=True)}
        return {label: self._method(label, *pair) for label, pair in models.items() if pair is not None}

    def _own_results(self, methods: Mapping[str, MethodRun]) -> FederationRun:
        assert self._problem is not None
        assert self._data is not None
        sizes = {split: [int(self._data.sizes(split)[0])] for split in SPLITS}
        return FederationRun(self.experiment, (self._name,), sizes["train"], sizes["test"], methods,
                             self._problem.score_name)

    def _method(self, label: str, personal: Vector, shared: Vector | None) -> MethodRun:
        assert self._problem is not None
        assert self._data is not None
        metrics = MetricsTable(label)
        for prefix, model in (("", personal), ("global_", shared)):
            if model is None:
                continue
            for name, values in evaluate_models(self._problem, tree.stack(model, 1), np.zeros(1, np.int32)).items():
                for split, value in zip(SPLITS, np.asarray(values)[0], strict=True):
                    metrics.add(self.experiment.rounds, 0, split, f"{prefix}{name}", value)
        models = SavedModels(label, self.experiment.rounds, (self._name,),
                             jax.tree.map(lambda leaf: np.asarray(leaf)[None], personal), shared,
                             self._problem.model, self._data.encoding)
        return MethodRun(models, metrics.table())

    def close(self) -> None:
        """Release the stores."""
        for store in self._stores:
            store.close()
        self._stores, self._parties = [], []


class Site:
    """A site of a federation.

    Args:
        name: name of the site in its certificate.
        folder: the folder of the site's runs.
        file: the site's table and limits.
        is_rehearsal: whether all participants are on this machine. The site decides it, not a message.
    """

    def __init__(self, name: str, folder: Path, file: SiteFile, *, is_rehearsal: bool = False) -> None:
        self.name, self._folder, self._file, self._is_rehearsal = name, folder, file, is_rehearsal
        self._run: SiteRun | None = None
        self._run_name = ""

    def handle(self, data: bytes) -> bytes:
        """Answer a message of the server.

        Raises:
            RequestError: the message does not follow the protocol of a federation.
        """
        message = read_message(data)
        if message.request is None:
            if self._run is None:
                raise RequestError("no run has begun at this site")
            return self._run.handle(message.method, message.body)
        try:
            answer = self._answer(message.request)
        except InputError as error:
            _log.exception("the site refuses a request")
            answer = {"refused": str(error)}
        except Exception as error:  # its text could have values of the table
            _log.exception("a request failed")
            answer = {"refused": f"the work at the site failed with {type(error).__name__}; its log says where"}
        reply = reply_bytes(answer)
        self._log_departure(str(message.request["kind"]), reply)
        return reply

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        kind, run = request["kind"], check_run_name(request.get("run"))
        if kind == "describe":
            return self._describe(run, request)
        if self._run is None or run != self._run_name:
            raise RequestError(f"the run {run} has not begun at this site")
        if kind == "prepare":
            encoding = from_plain(_mapping(request, "encoding"))
            if not isinstance(encoding, TableEncoding):
                raise RequestError("the encoding is none of a table")
            self._run.prepare(encoding)
            return {"score": self._run.experiment.model(encoding).loss.score_name}
        if kind == "finish":
            return {"methods": self._run.finish()}
        raise RequestError(f"there is no request {kind!r}")

    def _describe(self, run: str, request: Mapping[str, Any]) -> dict[str, Any]:
        if request.get("version") != library_version():
            raise RequestError(f"the site has version {library_version()} of resolvent, and the server another: "
                               "install the same")
        text, party = request.get("experiment"), request.get("party")
        if not isinstance(text, str) or type(party) is not int or party < 0:
            raise RequestError("the request has no experiment, or no number of the party")
        self.close()
        experiment = experiment_from_text(text, run, rehearsal=self._is_rehearsal, models=self._file.models,
                                          folder=self._file.folder)
        limits = self._file.limits
        self._run = SiteRun(self._folder / run, self._file, self.name, experiment, party)
        self._run_name = run
        rows = self._run.table.rows
        if rows < limits.min_rows:
            raise InputError(f"the site has fewer rows than the {limits.min_rows} with which it takes part")
        return {"table": self._run.report()}

    def _log_departure(self, kind: str, reply: bytes) -> None:
        """Write a reply that leaves the site before the rounds to the log; the stores of the parties log the rounds."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "sent.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "kind": kind,
                                   "run": self._run_name, "bytes": len(reply), "content": json.loads(reply)}) + "\n")

    def close(self) -> None:
        """Release the stores of the run."""
        if self._run is not None:
            self._run.close()
            self._run = None


def _mapping(request: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = request.get(key)
    if not isinstance(value, dict):
        raise RequestError(f"the request has no {key}")
    return value

"""A rehearsal: server, sites and lead on this machine, over loopback with certificates, from one table.

Afterwards the same experiment is simulated with the encoding on which the sites have agreed, and the models of both are
compared.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from resolvent.algorithms.algorithm import Algorithm
from resolvent.algorithms.combinators.fixed_point_sums import FixedPointSums
from resolvent.algorithms.combinators.prepared import prepare
from resolvent.algorithms.participation.rules import Participation
from resolvent.comparisons.experiment.binding import Bound
from resolvent.comparisons.experiment.checks import folder_name
from resolvent.comparisons.experiment.experiment_file import ExperimentFile
from resolvent.comparisons.experiment.yaml_files import write_yaml
from resolvent.comparisons.runs.record import read_record
from resolvent.data.federated import SPLITS, FederatedData
from resolvent.data.files.atomic_files import remove_folder, write_text
from resolvent.data.partition.folds import split_fold
from resolvent.errors import InputError
from resolvent.federation.engines.processes import ENGINE_LOG, free_port, running
from resolvent.federation.lead.engines import ENGINES, make_federation_kits, start_participant
from resolvent.federation.lead.lead import federate
from resolvent.federation.protocol.connections import knows_connections
from resolvent.federation.protocol.events import Observer, read_event
from resolvent.federation.protocol.experiment import FederatedExperiment, experiment_from_text
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.job import FederationJob, plan_digest
from resolvent.federation.protocol.kits import SERVER_KIT, Engine, KitNote
from resolvent.federation.protocol.names import CODE_FOLDER, SITE_FILE, run_of_method, runs_of
from resolvent.federation.protocol.plan import Plan
from resolvent.federation.protocol.plan_files import table_plan_of_file
from resolvent.federation.protocol.policy import REHEARSAL, VARIABLE
from resolvent.federation.protocol.stores import PartyStore, ServerStore
from resolvent.federation.protocol.table_plan import TablePlan
from resolvent.federation.protocol.wire import decode
from resolvent.federation.secure.answers import MASKED
from resolvent.federation.secure.primitives import Identity
from resolvent.federation.secure.rules import SumRules
from resolvent.federation.secure.site import SecureSite
from resolvent.federation.server.coordinator import first_state
from resolvent.federation.server.record_metrics import recorded_participation
from resolvent.math import tree
from resolvent.problem.models.model import Model
from resolvent.simulator.record.model_folder import ModelFolder
from resolvent.simulator.run import simulate
from resolvent.tables.cells import columns_of_codes
from resolvent.tables.encoding import TableEncoding
from resolvent.tables.owners import natural_order
from resolvent.tables.party_tables import from_frame, table
from resolvent.tables.table_files import read_table_file
from resolvent.tables.table_options import FileOptions, TableOptions

if TYPE_CHECKING:
    import pandas as pd

_Plan = TypeVar("_Plan", bound=Plan)
_HOST, LEAD = "localhost", "lead@example.org"
_JOIN_SECONDS = 120.0
# The changes that make a shipped experiment small enough for a rehearsal.
_SHIPPED: Mapping[str, Sequence[str]] = {
    "digits": ("data.parties=3", "rounds=20", "evaluate_every=5", "participation=Full",
               "algorithms={local-only: local, FedAvg: fedavg, FedAvg+: {name: fedavg_plus, sigma: 0.1, delta: 1}}",
               "title='Handwritten digits at three sites: a rehearsal'"),
}


def shipped_changes(source: str) -> Sequence[str]:
    """The changes that make a shipped experiment small enough for a rehearsal."""
    return _SHIPPED.get(source, ())


class Parity(NamedTuple):
    """The difference between the numbers of a federation and the simulation's.

    Attributes:
        difference: the largest absolute difference of a parameter, over the shared and all personal models.
        largest: the largest absolute value of a parameter of the simulation.
        tolerance: the difference that rounding can make, relative to the largest parameter.
        what: what is compared.
    """

    method: str
    difference: float
    largest: float
    tolerance: float = 1e-4  # rounding of 32-bit numbers, amplified by the rounds
    what: str = "models"

    @property
    def is_equal(self) -> bool:
        """Whether the numbers are equal up to rounding errors."""
        return self.difference <= self.tolerance * max(self.largest, 1e-30)

    @property
    def line(self) -> str:
        """The comparison for a person."""
        verdict = f"the same {self.what} as" if self.is_equal else f"OTHER {self.what.upper()} THAN"
        return (f"{self.method}: {verdict} the simulation; largest difference {self.difference:.1e}, largest value "
                f"{self.largest:.2g}")


@dataclass(frozen=True)
class Rehearsal(Generic[_Plan]):
    """A plan whose table is divided among sites of this machine.

    Attributes:
        plan: as the lead sends it.
        sites: name of a site -> name of its party in the table, in the order of the parties.
    """

    plan: _Plan
    frame: "pd.DataFrame"
    sites: Mapping[str, str]


def prepare_rehearsal(file: ExperimentFile) -> Rehearsal[FederatedExperiment]:
    """Divide the table of an experiment among sites; data in memory are converted to a table first."""
    import pandas as pd

    data = file.bound.parts.get("data")
    if not isinstance(data, Bound):
        raise InputError(f"{file.location('data')}: data: a rehearsal needs data of parties")
    if data.function is table:
        options = FileOptions.of(data.values)
        party = options.party
        frame, _ = read_table_file(data.values["table"], options.format, (party, *options.labels), options.cells,
                                   lambda column: True)
        settings = file.bound.settings()
        codes = [name for name in columns_of_codes(frame, options.cells) if name != party]
        settings["data"]["text"] = [*dict.fromkeys([*(options.text or []), *codes])] or None
    else:
        frame, party, labels = _as_table(data.build(), file)
        shares = {name: data.values[name] for name in ("validation", "test", "seed") if name in data.values}
        settings = {**file.bound.settings(), "data": {"table": "rehearsal.parquet", "party": party, "label": labels,
                                                      "scale": "none", **shares}}
        # Secure sums hide which classes a site has.
        settings["data"]["levels"] = {name: sorted({*frame[name].astype(str)}, key=natural_order)
                                      for name in TableOptions(party, labels).labels
                                      if not pd.api.types.is_float_dtype(frame[name])}
    experiment = experiment_from_text(write_yaml(settings), file.name, policy=REHEARSAL)
    names = sorted(set(frame[party].astype(str)), key=natural_order)
    return Rehearsal(experiment, frame, name_sites(names))


def _as_table(data: Any, file: ExperimentFile) -> "tuple[pd.DataFrame, str, str | list[str]]":
    """Data in memory as a table, the name of the column of the parties, and that of the label, or of several."""
    import pandas as pd

    if (not isinstance(data, FederatedData) or not isinstance(data.input_shape, tuple) or len(data.input_shape) != 1
            or data.vocabulary or not isinstance(data.label_shape, tuple) or len(data.label_shape) > 1):
        raise InputError(f"{file.location('data')}: data: a federation trains on tables, and a row of these data is no "
                         "vector of numbers with a label, or several: use an experiment with a table, or digits")
    several = [f"label {i}" for i in range(*data.label_shape)] if data.label_shape else []
    blocks = []
    for k, name in enumerate(data.parties):
        x, y = (np.concatenate(parts) for parts in zip(*(data.party(k, split) for split in SPLITS), strict=True))
        names = data.features or [f"x{i}" for i in range(x.shape[1])]
        labels = np.array(data.classes)[y] if data.task == "classification" else y
        columns = dict(zip(several, labels.T, strict=True)) if several else {"label": labels}
        blocks.append(pd.DataFrame(x, columns=list(names)).assign(party=name, **columns))
    return pd.concat(blocks, ignore_index=True), "party", several or "label"


def name_sites(parties: Sequence[str]) -> dict[str, str]:
    """Name of a site, which a certificate can contain -> name of its party."""
    sites: dict[str, str] = {}
    for party in parties:
        base = re.sub(r"[^A-Za-z0-9_-]+", "-", party).strip("-_")[:30] or "site"
        name = base if base.casefold() not in {"server", "lead", *map(str.casefold, sites)} else f"{base}-{len(sites)}"
        sites[name] = party
    return sites


def prepare_table_plan(plan: TablePlan) -> Rehearsal[Any]:
    """Divide the table of a plan among sites."""
    data = plan.file.data
    frame, _ = read_table_file(plan.file.table, data.format, [data.party], data.cells, lambda column: True)
    if data.party not in frame.columns:
        raise InputError(f"{plan.name}: data.party: the table has no column {data.party!r}")
    codes = [column for column in columns_of_codes(frame, data.cells) if column != data.party]
    data = replace(data, text=(*dict.fromkeys([*data.text, *codes]),))
    sites = name_sites(sorted(set(frame[data.party].astype(str)), key=natural_order))
    return Rehearsal(replace(plan, file=replace(plan.file, data=data)), frame, sites)


def rehearsal_of_file(source: str, changes: Sequence[str] = ()) -> Rehearsal[Any]:
    """Divide the table of a file among sites; an experiment also by its name."""
    plan = table_plan_of_file(source, changes, REHEARSAL)
    if plan is not None:
        return prepare_table_plan(plan)
    return prepare_rehearsal(ExperimentFile.load(source, [*shipped_changes(source), *changes]))


def rehearse(rehearsal: Rehearsal[Any], out: Path, job: FederationJob, observe: Observer, *, folder: Path,
             notify: Callable[[str], None], engine: Engine = "nvflare") -> tuple[Any, list[Parity]]:
    """Run a plan in a federation on this machine, then simulate it and compare.

    Args:
        folder: an empty folder for the kits, the sites' tables and their runs.
        engine: the program that connects the participants.

    Returns:
        The result, see ``federate``, and the comparison of each method.

    Raises:
        InputError: a process does not start, or a site refuses.
    """
    plan = rehearsal.plan
    with rehearsed_federation(rehearsal, folder, notify, engine) as kits:
        result = federate(KitNote(kits[LEAD]), plan, out, job, observe, notify=notify)
    notify(f"simulating the same {plan.title} in one process")
    if isinstance(plan, TablePlan):
        return result, [compare_with_process(rehearsal, result)]
    server = None if job.quorum is None else kits[LEAD if engine == "flower" else SERVER_KIT]
    return result, compare_with_simulation(rehearsal, plan, out, {site: kits[site] for site in rehearsal.sites}, server)


def compare_with_process(rehearsal: Rehearsal[Any], found: Any) -> Parity:
    """Compare what a plan on a table has found with the same in this process, from the rows of all sites."""
    plan: TablePlan = rehearsal.plan
    expected, numbers = plan.compared(plan.in_process(rehearsal.frame)), plan.compared(found)
    return Parity(plan.title, float(np.abs(numbers - expected).max()), max(1.0, float(np.abs(expected).max())),
                  tolerance=plan.tolerance, what="numbers")


@contextlib.contextmanager
def rehearsed_federation(rehearsal: Rehearsal[Any], folder: Path, notify: Callable[[str], None],
                         engine: Engine = "nvflare") -> Iterator[dict[str, Path]]:
    """Start the server and the sites and wait until the sites have joined; yields the folder of each kit."""
    folder = folder.resolve()  # the participants' processes have working folders of their own
    remove_folder(folder)
    folder.mkdir(parents=True)
    folder.chmod(0o700)  # it has copies of the rows
    sites = (*rehearsal.sites,)
    plan = Consortium(name="rehearsal", host=_HOST, port=free_port(), sites=sites, lead=LEAD, engine=engine)
    kits = make_federation_kits(folder / "kits", plan)
    files = _write_tables(rehearsal, folder / "sites")
    common = {VARIABLE: REHEARSAL.name, CODE_FOLDER: str(Path.cwd())}
    with contextlib.ExitStack() as stack:
        if engine == "nvflare":
            stack.enter_context(running(start_participant(KitNote(kits[SERVER_KIT]), common)))
        processes = {site: stack.enter_context(running(start_participant(
            KitNote(kits[site]), {**common, SITE_FILE: str(files[site])}))) for site in sites}
        is_ready = knows_connections
        if engine == "flower":
            from resolvent.federation.engines.flower.door import door_setting, has_door
            from resolvent.federation.engines.flower.local import superlink_and_supernodes

            is_ready = has_door
            stack.enter_context(superlink_and_supernodes(
                folder / "flower", plan.address, {site: door_setting(kits[site]) for site in sites}))
        for site, process in processes.items():
            process.wait_for(lambda kit=kits[site]: is_ready(kit), _JOIN_SECONDS)  # type: ignore[misc]
        notify(f"server and {len(sites)} sites run on this machine and are connected over {ENGINES[engine].title} "
               "(TLS)")
        try:
            yield kits
        except InputError:
            notify(f"the participants' logs: {folder / 'kits' / '*' / ENGINE_LOG}")
            raise


def _write_tables(rehearsal: Rehearsal[Any], folder: Path) -> dict[str, Path]:
    """The table and the site file of each site."""
    party = rehearsal.plan.table.party
    owners, files = rehearsal.frame[party].astype(str), {}
    for site, name in rehearsal.sites.items():
        target = folder / site
        target.mkdir(parents=True)
        rows = rehearsal.frame[owners == name].drop(columns=party).reset_index(drop=True)
        rows.to_parquet(target / "table.parquet", index=False)
        files[site] = target / "site.yaml"
        # With limits that a simulation does not have, the models would not be those of the simulation.
        write_text(files[site], write_yaml({"table": "table.parquet", "profile": "open"}))
    return files


def compare_with_simulation(rehearsal: Rehearsal[FederatedExperiment], experiment: FederatedExperiment, out: Path,
                            kits: Mapping[str, Path], server: Path | None = None) -> list[Parity]:
    """Simulate with the agreed encoding, and compare the models, with folds those of the first.

    Args:
        kits: site -> the folder of its kit, which has the site's run.
        server: the folder of the server's kit, if the run has a quorum: the simulation repeats who answered when.

    Returns:
        The comparison of each method.
    """
    record = read_record(out)
    encoding = ModelFolder(out / "models" / folder_name(experiment.labels[0])).encoding
    assert isinstance(encoding, TableEncoding)
    settings = experiment.table
    if settings.levels:  # rows with other levels have none
        encoding = replace(encoding, unseen="other")
    data = from_frame(rehearsal.frame, settings.party, list(settings.labels), encoding=encoding,
                      validation=settings.validation, test=settings.test, seed=settings.seed)
    if record.folds > 1:  # the models are those of the first
        data = split_fold(data, 0, record.folds, experiment.seed).data
    parities = []
    with experiment.file.precision():
        model = experiment.model(encoding)
        for number, label in enumerate(experiment.labels):
            algorithm, participation = experiment.algorithm(label), experiment.participation()
            if server is not None:
                store = runs_of(server) / record.run / "stores" / f"{number:02d}"
                participation = _recorded(algorithm, model, store, experiment.seed, participation)
            result = simulate(algorithm, model, data, rounds=experiment.rounds, seed=experiment.seed,
                              participation=participation, evaluate_every=experiment.rounds, progress=False)
            folder = Path("models") / folder_name(label)
            pairs = [(result.personal_model(party),
                      ModelFolder(runs_of(kits[site]) / record.run / folder).parameters(site, model))
                     for site, party in rehearsal.sites.items()]
            if result.server_model is not None:
                pairs.append((result.server_model, ModelFolder(out / folder).parameters(None, model)))
            parities.append(_parity(label, pairs))
    return parities


def _recorded(algorithm: Algorithm, model: Model, folder: Path, seed: int,
              participation: Participation) -> Participation:
    """Who answered which message in each round, as the server has stored it."""
    algorithm, description = prepare(algorithm, model.init)
    with ServerStore(folder) as store:
        record = store.read(
            lambda parties: jax.eval_shape(first_state, algorithm, description.model, jnp.ones(parties)))
        assert record is not None
        return recorded_participation(record, map(read_event, store.entries()), seed, participation)


def _parity(label: str, pairs: Sequence[tuple[Any, Any]]) -> Parity:
    differences, largest = [0.0], [0.0]
    for simulated, federated in pairs:
        leaves = zip(tree.named_leaves(simulated), jax.tree.leaves(federated), strict=True)
        for (_, leaf), other in leaves:
            expected = np.asarray(leaf, np.float64)
            differences.append(float(np.abs(expected - np.asarray(other, np.float64)).max(initial=0)))
            largest.append(float(np.abs(expected).max(initial=0)))
    return Parity(label, max(differences), max(largest))


class HiddenNumbers(NamedTuple):
    """The first numbers of the last reply of a site.

    Attributes:
        received: what the server got, read as fixed-point numbers.
        hidden: what the site computed: w_k x_k.
    """

    method: str
    site: str
    received: list[float]
    hidden: list[float]


def hidden_numbers(experiment: FederatedExperiment, kits: Mapping[str, Path], run: str,
                   count: int = 3) -> Iterator[HiddenNumbers]:
    """The first numbers that each site hid in its last reply of each method, with the first seed.

    Args:
        kits: site -> its kit.
    """
    rules = SumRules.of_plan(experiment.privacy)
    plan = plan_digest(run, experiment.text, experiment.refit, experiment.keeps_validation)
    for number, label in enumerate(experiment.labels):
        algorithm = experiment.algorithm(label)
        if rules is None or not isinstance(algorithm, FixedPointSums):
            continue
        for name, kit in kits.items():
            folder = runs_of(kit) / run / "stores" / f"{number:02d}"
            note = KitNote(kit)
            site = SecureSite(name, run_of_method(run, number, plan), folder,
                              Identity(note.sign, note.verify_participant), rules, (*kits,))
            with PartyStore(folder) as store:
                reply = decode(store.read_reply())
            sent = reply.arrays[MASKED]
            integers = sent - site.repeated_mask((reply.round, reply.phase + 1), reply.fact("sent", str), len(sent),
                                                  sent.dtype.str)
            yield HiddenNumbers(label, name, _as_numbers(sent[:count], algorithm.fraction),
                                _as_numbers(integers[:count], algorithm.fraction))


def _as_numbers(integers: Any, fraction: int) -> list[float]:
    signed = integers.view(f"<i{integers.dtype.itemsize}")
    return [float(value) for value in np.ldexp(signed.astype(float), -fraction)]

"""The samples of a run at one of the sites of a federation: read again from its own table."""

import json
from pathlib import Path

from resolvent.comparisons.after.run_rows import models_of_run
from resolvent.comparisons.runs.record import EXPERIMENT_FILE, read_record
from resolvent.data.federated import FederatedData
from resolvent.errors import InputError
from resolvent.federation.protocol.experiment import experiment_from_text
from resolvent.federation.protocol.files import read_site
from resolvent.federation.protocol.names import VERSION_FILE, VERSIONS
from resolvent.federation.site.table import FoldOfTable, read_site_table
from resolvent.tables.encoding import TableEncoding


def samples_of_run(folder: Path, path: Path) -> FederatedData:
    """The samples of a federation's site, divided as in a run, with folds as in the first."""
    if not (folder / EXPERIMENT_FILE).is_file():
        raise InputError(f"{folder} has no {EXPERIMENT_FILE}: name the run's folder in the folder `runs` of the site's "
                         "kit")
    models = models_of_run(folder)
    site, encoding = read_site(path), models.encoding
    assert isinstance(encoding, TableEncoding)
    experiment = experiment_from_text((folder / EXPERIMENT_FILE).read_text("utf-8"), folder.name, models=site.models,
                                      folder=site.folder)
    record = read_record(folder)
    if (party := record.data.party) is None:
        raise InputError(f"{folder} is not the folder of a site, and {path} is a site's file: name the run's folder in "
                         "the folder `runs` of the site's kit (of a run of this version, which notes the number of the "
                         "site)")
    version = json.loads((folder / VERSION_FILE).read_text("utf-8"))["version"]
    fold = FoldOfTable(0, record.folds, record.seed) if record.folds > 1 else None
    table = read_site_table(site, experiment.table, models.parties[0], party, version=version, fold=fold,
                            folder=None if version is None else folder.parent / VERSIONS)
    return table.encode(encoding)

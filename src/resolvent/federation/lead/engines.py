"""The engines that connect the participants of a federation: what the commands do differently for each of them."""

from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from resolvent.errors import InputError
from resolvent.federation.engines.processes import EngineProcess
from resolvent.federation.lead.lead import write_sites
from resolvent.federation.protocol.files import Consortium
from resolvent.federation.protocol.kits import SERVER_KIT, Engine, KitNote
from resolvent.federation.protocol.names import ALLOWED_CLASSES


class _EngineFacts(NamedTuple):
    """Facts about an engine.

    Attributes:
        package: its package, which is installed with the extra of the engine's name.
        version: the only version that works; empty if any works that its extra allows. The adapter of NVIDIA FLARE uses
            internal interfaces, and all its participants need the same version.
    """

    title: str
    package: str
    version: str


ENGINES: Mapping[Engine, _EngineFacts] = {"nvflare": _EngineFacts("NVIDIA FLARE", "nvflare", "2.9.0"),
                                          "flower": _EngineFacts("Flower", "flwr", "")}


def require_engine(engine: Engine) -> None:
    """Check that an engine is installed, in a version with which this library works.

    Over Flower only the commands that start Flower's programs need it: ``resolvent lead start`` and a rehearsal.
    """
    facts = ENGINES[engine]
    if find_spec(facts.package) is None:
        raise InputError(f"{facts.title} is not installed: run pip install 'resolvent[{engine}]' in an environment of "
                         "its own, such as python -m venv fed")
    installed = version(facts.package)
    if facts.version and installed != facts.version:
        raise InputError(f"{facts.title} {installed} is installed, and this version of resolvent works with "
                         f"{facts.version} only: run pip install '{facts.package}=={facts.version}'")


def make_federation_kits(folder: Path, plan: Consortium) -> dict[str, Path]:
    """Make the kits of a federation's participants, see ``make_kits``; returns name of a new kit -> its folder.

    Raises:
        InputError: there are kits that connect to another address.
    """
    for name in (SERVER_KIT, *plan.sites, plan.lead, *plan.members):
        if (folder / name).exists() and (former := KitNote(folder / name).address) != plan.address:
            raise InputError(f"{folder / name} connects to {former}, and the consortium file says {plan.address}: kits "
                             "are made for one address. Write the former one, or move the folder of the kits away, "
                             "make all kits again and send them to their owners")
    if plan.engine == "flower":
        from resolvent.federation.engines.flower.kits import make_flower_kits

        kits = make_flower_kits(folder, name=plan.name, address=plan.address, sites=plan.sites, lead=plan.lead)
    else:
        from resolvent.federation.engines.nvflare.provisioning import make_kits

        require_engine(plan.engine)
        kits = make_kits(folder, name=plan.name, host=plan.host, port=plan.port, sites=plan.sites, lead=plan.lead,
                         members=plan.members)
    for person in (plan.lead, *plan.members):
        write_sites(folder / person, plan.name, plan.sites)
    return kits


def start_participant(note: KitNote, environment: Mapping[str, str]) -> EngineProcess:
    """Start the process of the server or of a site.

    Args:
        environment: variables for the processes, in addition to those of this one.
    """
    if note.engine == "flower":
        from resolvent.federation.engines.flower.programs import start_site

        return start_site(note, environment)
    from resolvent.federation.engines.nvflare.processes import start_engine

    return start_engine(note, ALLOWED_CLASSES, environment)

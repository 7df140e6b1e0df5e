"""The contestants and their settings, and the virtual environments of the peers."""

import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CONTESTANTS", "ENVIRONMENTS", "Contestant", "environment", "pins", "replaced_pins"]

# Flower 1.42.0 requires a certifi of its release day, which a mirror of the registry may lack, and packages for its
# command line and servers. It is therefore installed without dependencies, and those that it needs are listed here.
_FLOWER = ("alembic>=1.18.1,<2", "certifi", "click>=8,<9", "cryptography>=50,<51", "fastapi>=0.138,<0.139",
           "grpcio-health-checking>=1.70,<2", "grpcio>=1.70,<2", "httpx>=0.28.1,<1", "iterators>=0.0.2,<0.0.3",
           "packaging>=24,<26", "pathspec>=1.0.4,<2", "prompt-toolkit>=3.0.52,<4", "protobuf>=5.28,<7",
           "pycryptodome>=3.18,<4", "pyyaml>=6.0.2,<7", "ray==2.55.1", "requests>=2.33,<3", "rich>=14,<15",
           "sqlalchemy[asyncio]>=2.0.45,<3", "starlette>=1.3.1,<1.4", "tomli-w>=1,<2", "tomli>=2,<3",
           "typer>=0.13,<0.21", "uvicorn[standard]>=0.49,<0.50")
# The arguments of each call of pip.
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torch": (("torch==2.15.0", "numpy"),),
    "pfl": (("pfl[pytorch]==0.6.0", "torch==2.15.0"),),
    "flower": (("torch==2.15.0", "numpy", *_FLOWER), ("--no-deps", "flwr==1.42.0")),
    # FedJAX calls jax.tree_map, which newer versions of JAX do not have; the other packages are of the same time.
    "fedjax": (("fedjax==0.0.17", "jax==0.4.28", "jaxlib==0.4.28", "dm-haiku==0.0.12", "optax==0.2.2",
                "chex==0.1.86", "numpy<2", "scipy<1.13"),),
}


@dataclass(frozen=True)
class Contestant:
    """One way to run the workloads.

    Attributes:
        name: the simulator.
        setting: number of workers, threads or devices.
        program: the script in this folder.
        environment_name: name of its virtual environment; None: that of this program.
        arguments: further arguments of the script.
        environment: environment variables.
        only: the workloads that it has; empty: all.
    """

    name: str
    setting: str
    program: str
    environment_name: str | None = None
    arguments: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    only: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name and the setting."""
        return f"{self.name}, {self.setting}"


def _threads(count: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, str(count)) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"))


_TWO_DEVICES = ("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
_NARROW = ("PJRT_NPROC", "1")  # as our command line does

CONTESTANTS = (
    Contestant("ours", "1 core", "ours.py", environment=(_NARROW,)),
    Contestant("ours", "2 devices", "ours.py", arguments=("--devices", "2"), environment=(_NARROW, _TWO_DEVICES)),
    Contestant("ours", "2 processes", "ours.py", arguments=("--processes", "2"), environment=(_NARROW,)),
    Contestant("PyTorch loop", "1 thread", "torch_loop.py", "torch", environment=_threads(1)),
    Contestant("PyTorch loop", "2 threads", "torch_loop.py", "torch", ("--threads", "2"), _threads(2)),
    Contestant("pfl", "1 worker", "pfl_simulation.py", "pfl", environment=_threads(1)),
    Contestant("pfl", "1 worker of 2 threads", "pfl_simulation.py", "pfl", ("--threads", "2"), _threads(2)),
    Contestant("pfl", "2 workers", "pfl_simulation.py", "pfl", ("--processes", "2"), _threads(1)),
    Contestant("Flower", "1 worker", "flower_simulation.py", "flower", environment=_threads(1)),
    Contestant("Flower", "2 workers", "flower_simulation.py", "flower", ("--processes", "2"), _threads(1)),
    Contestant("FedJAX", "1 device", "fedjax_simulation.py", "fedjax"),
    Contestant("FedJAX", "2 devices", "fedjax_simulation.py", "fedjax", ("--devices", "2"), (_TWO_DEVICES,)),
    Contestant("C kernel", "1 core", "floor.py", environment=_threads(1), only=("W1", "W2")),
)


def environment(name: str, folder: Path) -> Path:
    """The Python of a virtual environment in ``folder``, which is made if it does not exist as in ``ENVIRONMENTS``.

    A version that cannot be installed on this machine is replaced by the newest one that can, see ``replaced_pins``.
    """
    home = folder / f"environment-{name}"
    python, stamp = home / "bin" / "python", home / "installed"
    content = f"{sys.version}\n{ENVIRONMENTS[name]}\n"
    if stamp.exists() and stamp.read_text() == content:
        return python
    shutil.rmtree(home, ignore_errors=True)
    print(f"making {home}: {ENVIRONMENTS[name]}", flush=True)
    venv.create(home, with_pip=True)
    replaced: list[str] = []
    for requirements in ENVIRONMENTS[name]:
        if not _install(python, *requirements):
            pins_that_fail = [r for r in requirements
                              if "==" in r and not _install(python, "--dry-run", "--no-deps", r)]
            replaced += pins_that_fail
            newest = [r.partition("==")[0] if r in pins_that_fail else r for r in requirements]
            if not pins_that_fail or not _install(python, *newest):
                raise SystemExit(f"pip cannot install {' '.join(newest)} into {home}: its output is above")
    (home / "replaced.json").write_text(json.dumps(replaced))
    stamp.write_text(content)
    return python


def _install(python: Path, *arguments: str) -> bool:
    """Whether pip has installed packages."""
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False, env=clean()).returncode == 0


def replaced_pins(python: Path) -> list[str]:
    """For an environment, the pins that could not be installed, each with the version that was installed instead."""
    installed = dict(pin.split("==") for pin in pins(python) if "==" in pin)
    failed: list[str] = json.loads((python.parent.parent / "replaced.json").read_text())
    versions = {pin: installed.get(pin.partition("==")[0].partition("[")[0], "no version") for pin in failed}
    return [f"{pin} could not be installed: {version} ran" for pin, version in versions.items()]


def pins(python: Path) -> list[str]:
    """The packages that are installed in an environment, with their versions; not those of a folder."""
    shown = subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable", "--disable-pip-version-check"],
                           check=True, text=True, capture_output=True, env=clean())
    return shown.stdout.splitlines()


def clean() -> dict[str, str]:
    """The environment variables without those that make this environment's packages visible in another one."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}

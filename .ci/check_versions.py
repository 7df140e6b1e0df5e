"""Check the bounds of the dependencies: digits and the contract with their lowest and with their newest versions.

    python .ci/check_versions.py [lowest] [newest] [prerelease] [--digits-only] [--speed]

``prerelease`` has the newest versions, and of JAX the newest pre-release, from the index that the environment variable
JAX_PRERELEASES names (its address is on JAX's installation page), or else from the usual index. ``--speed`` adds the
speed of the models of benchmarks/models with each set of versions. uv makes the environments in a temporary folder, and
is installed there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_INDEX = ["--extra-index-url", os.environ["JAX_PRERELEASES"]] if os.environ.get("JAX_PRERELEASES") else []
RESOLUTIONS = {
    "lowest": ["--resolution", "lowest-direct"],
    "newest": ["--resolution", "highest"],
    "prerelease": ["--resolution", "highest", "--prerelease", "if-necessary-or-explicit", "--index-strategy",
                   "unsafe-best-match", *_INDEX, "jax>=0.8.0.dev0", "jaxlib>=0.8.0.dev0"],
}
# Samples of each model of benchmarks/models: few, for a comparison of versions and not for a figure to be quoted.
SAMPLES = {"mlp": 4000, "cnn": 200, "resnet": 40, "series": 400, "gru": 200, "lstm": 200, "transformer": 100,
           "bag": 400}
# The contract of three methods with states of different kinds, and what depends on the version of JAX.
TESTS = ["tests/xla_cpu_rewrites/test_small_call.py", "tests/xla/test_fallback.py",
         "tests/xla_cpu_rewrites/test_convolution_forms.py",
         "tests/algorithms/test_contract.py",
         "-k", "small_call or fallback or form or fedavg- or scaffold- or fedplus-"]


def main() -> None:
    """Check the versions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="{lowest,newest,prerelease}",
                        help="default: lowest and newest")
    parser.add_argument("--digits-only", action="store_true", help="do not run the contract")
    parser.add_argument("--speed", action="store_true", help="also run the models of benchmarks/models")
    arguments = parser.parse_args()
    if unknown := set(arguments.versions) - set(RESOLUTIONS):  # argparse refuses an empty list if it has choices
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}; choose from {', '.join(RESOLUTIONS)}")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools"
        venv.create(tools, with_pip=True)
        run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
        speeds = {}
        for versions in arguments.versions or ["lowest", "newest"]:
            check(tools / "bin" / "uv", versions, Path(folder) / versions, digits_only=arguments.digits_only)
            if arguments.speed:
                speeds[versions] = measure(Path(folder) / versions / "bin" / "python")
        if speeds:
            report(speeds)


def check(uv: Path, versions: str, folder: Path, *, digits_only: bool) -> None:
    """Install the package with these versions, run digits, and test the contract."""
    programs = folder / "bin"
    python = programs / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    extras = "" if digits_only else "[flax,test]"
    run(uv, "pip", "install", "--quiet", "--python", python, *RESOLUTIONS[versions],
        "--editable", f"{ROOT}{extras}")
    run(programs / "resolvent", "run", "digits", "--out", folder / "run", stdout=subprocess.DEVNULL)
    if not digits_only:
        run(python, "-m", "pytest", "-p", "no:cacheprovider", "-q", *TESTS)
    print(f"{versions} versions of the dependencies: digits{'' if digits_only else ' and the contract'} run")


def measure(python: Path) -> dict[str, dict[str, float | str]]:
    """Model -> the CPU time of a sample in microseconds, and the version of JAX."""
    rows = {}
    for model, samples in SAMPLES.items():
        command = [str(python), "benchmarks/models/ours.py", model, str(samples), "1", "1"]
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        rows[model] = json.loads(result.stdout.splitlines()[-1])
    return rows


def report(speeds: dict[str, dict[str, dict[str, float | str]]]) -> None:
    """Print a table of models and versions."""
    titles = [f"{versions} (JAX {next(iter(rows.values()))['jax']})" for versions, rows in speeds.items()]
    print("Microseconds of CPU time for each training sample, one run of few samples:")
    print(f"{'model':12s}", *(f"{title:>22s}" for title in titles))
    for model in SAMPLES:
        print(f"{model:12s}", *(f"{rows[model]['us_cpu']:22.0f}" for rows in speeds.values()))


def run(*command: object, stdout: int | None = None) -> None:
    """Run a command; if it fails, so does the check."""
    status = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=stdout, check=False).returncode
    if status:
        raise SystemExit(f"failed with status {status}: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()

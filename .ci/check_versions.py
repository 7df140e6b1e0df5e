"""Check the bounds of the dependencies: digits and the contract with their lowest and with their newest versions.

    python .ci/check_versions.py [lowest] [newest] [--digits-only]

Each environment is made in a temporary folder by uv, which is installed there.
"""

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
RESOLUTIONS = {"lowest": "lowest-direct", "newest": "highest"}
# The contract of three methods with states of different kinds, and what depends on the version of JAX.
TESTS = ["tests/xla/test_small_call.py", "tests/xla/test_fallback.py", "tests/algorithms/test_contract.py",
         "-k", "small_call or fallback or fedavg- or scaffold- or fedplus-"]


def main() -> None:
    """Check the versions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", metavar="{lowest,newest}", help="default: both")
    parser.add_argument("--digits-only", action="store_true", help="do not run the contract")
    arguments = parser.parse_args()
    if unknown := set(arguments.versions) - set(RESOLUTIONS):  # argparse refuses an empty list if it has choices
        parser.error(f"unknown versions: {', '.join(sorted(unknown))}; choose from {', '.join(RESOLUTIONS)}")
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder) / "tools"
        venv.create(tools, with_pip=True)
        run(tools / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv")
        for versions in arguments.versions or RESOLUTIONS:
            check(tools / "bin" / "uv", versions, Path(folder) / versions, digits_only=arguments.digits_only)


def check(uv: Path, versions: str, folder: Path, *, digits_only: bool) -> None:
    """Install the package with these versions, run digits, and test the contract."""
    programs = folder / "bin"
    python = programs / "python"
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    extras = "" if digits_only else "[flax,test]"
    run(uv, "pip", "install", "--quiet", "--python", python, "--resolution", RESOLUTIONS[versions],
        "--editable", f"{ROOT}{extras}")
    run(programs / "resolvent", "run", "digits", "--out", folder / "run", stdout=subprocess.DEVNULL)
    if not digits_only:
        run(python, "-m", "pytest", "-p", "no:cacheprovider", "-q", *TESTS)
    print(f"{versions} versions of the dependencies: digits{'' if digits_only else ' and the contract'} run")


def run(*command: object, stdout: int | None = None) -> None:
    """Run a command; if it fails, so does the check."""
    status = subprocess.run([str(word) for word in command], cwd=ROOT, stdout=stdout, check=False).returncode
    if status:
        raise SystemExit(f"failed with status {status}: {' '.join(map(str, command))}")


if __name__ == "__main__":
    main()

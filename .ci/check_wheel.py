"""Check the wheel and the source archive: their contents, and that the wheel runs an experiment where it is installed.

Usage: python .ci/check_wheel.py dist/*.whl dist/*.tar.gz
"""

import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"


def main() -> None:
    """Check the wheel and the source archive that the command line names."""
    wheel, archive = (Path(name).resolve() for name in sys.argv[1:])
    check_archive(archive)
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as folder:
        check_installation(wheel, Path(folder))
    print(f"{wheel.name}, {archive.name}: contents, installation and `resolvent run digits` are right")


def check_archive(archive: Path) -> None:
    """All files of the repository and nothing else, so that the tests run and the documentation is built from it."""
    with tarfile.open(archive) as opened:
        names = [PurePosixPath(member.name) for member in opened.getmembers() if member.isfile()]
    packed = {PurePosixPath(*name.parts[1:]) for name in names}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    files = {PurePosixPath(name) for name in tracked.splitlines()}
    missing, extra = files - packed, packed - files - {PurePosixPath("PKG-INFO")}
    if missing or extra:
        raise SystemExit(f"{archive.name}: missing: {_listed(missing)}; should not be there: {_listed(extra)}")


def check_contents(wheel: Path) -> None:
    """The packages' own files, all of them, with the license, and nothing else."""
    packed = {PurePosixPath(name) for name in ZipFile(wheel).namelist()}
    metadata = {path for path in packed if path.parts[0].endswith(".dist-info")}
    files = {PurePosixPath(path.relative_to(SOURCE).as_posix()) for path in SOURCE.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts and not path.parts[-2].endswith(".egg-info")}
    missing, extra = files - packed, packed - metadata - files
    if missing or extra:
        raise SystemExit(f"{wheel.name}: missing: {_listed(missing)}; should not be there: {_listed(extra)}")
    kinds = {path.suffix for path in files}
    typed = {PurePosixPath(package, "py.typed") for package in ("resolvent", "xla_cpu_rewrites")}
    if not {".py", ".yaml", ".jinja"} <= kinds or not typed <= files:
        raise SystemExit(f"{wheel.name}: experiments (.yaml), templates (.jinja) or py.typed are missing")
    if not any(path.name == "LICENSE" for path in metadata):
        raise SystemExit(f"{wheel.name}: the LICENSE is missing")


def check_installation(wheel: Path, folder: Path) -> None:
    """Install into a fresh environment, with the dependencies that the wheel declares, and run an experiment."""
    venv.create(folder / "env", with_pip=True)
    programs = folder / "env" / "bin"
    subprocess.run([programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "--no-compile", wheel], check=True)
    run = subprocess.run([programs / "resolvent", "run", "digits", "--out", folder / "run"], cwd=folder,
                         stderr=subprocess.PIPE, text=True, check=False)
    # A warning often means that an optional part of a dependency is missing.
    if run.returncode or "warning:" in run.stderr.lower() or not (folder / "run" / "report.html").is_file():
        raise SystemExit(f"resolvent run digits failed or warned:\n{run.stderr}")


def _listed(paths: set[PurePosixPath]) -> str:
    return ", ".join(sorted(map(str, paths))) or "nothing"


if __name__ == "__main__":
    main()

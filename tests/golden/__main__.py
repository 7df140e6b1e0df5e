"""Record or check the golden file: ``python tests/golden record FILE`` or ``python tests/golden check [FILE]``.

``--only NAME ...`` runs these parts alone: presets, ``messages`` or ``files``. ``record --only`` replaces their arrays
in the file and keeps the others. All parts take about a quarter of an hour of two cores.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from golden import arrays, workers


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "check"])
    parser.add_argument("file", nargs="?", type=Path, default=arrays.FILE)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME")
    options = parser.parse_args()
    found = workers.run(options.only)
    if options.action == "record":
        kept = arrays.read(options.file) if options.only and options.file.exists() else {}
        kept = {name: value for name, value in kept.items() if name.split("/")[0] not in options.only}
        arrays.write(options.file, {**kept, **found})
        print(f"{len(found)} arrays and texts in {options.file}")
        return 0
    expected = {name: value for name, value in arrays.read(options.file).items()
                if not options.only or name.split("/")[0] in options.only}
    report = arrays.compare(expected, found, arrays.read_changes(arrays.CHANGES), is_complete=not options.only)
    print("\n".join(report.lines()))
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())

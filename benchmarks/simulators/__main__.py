"""The time of a round: resolvent, four other simulators and the limits of the machine, on the same four workloads.

    python -m benchmarks.simulators --out benchmarks/simulators.json        everything, about an hour; then --redraw
    python -m benchmarks.simulators --quick                                 a few rounds of each, once, as a test
    python -m benchmarks.simulators --out benchmarks/simulators-amd.json    the same on another kind of machine
    python -m benchmarks.simulators --redraw                                the picture from the JSON file alone
    python -m benchmarks.simulators --profile W2                            the time of the parts of a round

All contestants have the same samples, cohorts, first model and local work. Runs alternate, each in a new process
with an allocator that keeps its buffers. Seconds per round are those of the second half of the rounds, medians of the
repeats. Each peer is installed into a virtual environment in the user's cache folder. Needs RESOLVENT_DATA with MNIST
and Shakespeare.
"""

import argparse
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER))


def main() -> None:
    """Parse the arguments and do what they say."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulators", description=__doc__.split("\n")[0],
                                     epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "simulators.json", help="the figures, as JSON")
    parser.add_argument("--work", nargs="+", choices=["W1", "W2", "W3", "W4"], help="workloads; default: all")
    parser.add_argument("--contestants", nargs="+", metavar="NAME", help="beginnings of contestants' labels, such as "
                        "'ours, 1' or FedJAX; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="number of runs of each")
    parser.add_argument("--quick", action="store_true", help="two rounds of each, once, written to quick.json in the "
                        "cache folder: not to be quoted")
    parser.add_argument("--redraw", action="store_true", help="only draw the picture of the JSON file")
    parser.add_argument("--profile", metavar="W", choices=["W1", "W2", "W3", "W4"],
                        help="measure the parts of a round of resolvent on one workload")
    options = parser.parse_args()
    if options.redraw:
        from report import report

        report(options.out)
    elif options.profile:
        from anatomy import anatomy

        anatomy(options.profile)
    else:
        from race import race

        race(options.out, options.work, options.contestants, options.repeats, quick=options.quick)


if __name__ == "__main__":
    main()

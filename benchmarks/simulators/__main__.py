"""How long a round takes: ours, four peers and the machine's own limits, on the same four workloads.

    python -m benchmarks.simulators --out benchmarks/simulators.json        all of it, about an hour; then --table
    python -m benchmarks.simulators --quick                                 a few rounds of each, once, to see it work
    python -m benchmarks.simulators --table                                 table and picture from the JSON alone
    python -m benchmarks.simulators --profile W2                            where our time goes on one workload

Everybody has the same samples, cohorts, first model and local work. Runs are taken in alternation, each in a process
of its own; seconds per round are those of the second half of the rounds, medians over the repeats. Peers are installed
into virtual environments of their own in the user's cache folder. Needs RESOLVENT_DATA with MNIST and Shakespeare.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulators", description=__doc__.split("\n")[0],
                                     epilog=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "simulators.json", help="the figures, as JSON")
    parser.add_argument("--work", nargs="+", choices=["W1", "W2", "W3", "W4"], help="workloads; default: all")
    parser.add_argument("--who", nargs="+", metavar="NAME", help="contestants by the beginning of their label, such as "
                        "'ours, 1' or FedJAX; default: all")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each")
    parser.add_argument("--quick", action="store_true", help="two rounds of each, once, written to quick.json in the "
                        "cache folder: no figures to quote")
    parser.add_argument("--table", action="store_true", help="only draw what is in the JSON")
    parser.add_argument("--profile", metavar="W", choices=["W1", "W2", "W3", "W4"], help="profile ours on one workload")
    given = parser.parse_args()
    if given.table:
        from report import report

        report(given.out)
    elif given.profile:
        from anatomy import anatomy

        anatomy(given.profile)
    else:
        from race import race

        race(given.out, given.work, given.who, given.repeats, quick=given.quick)


if __name__ == "__main__":
    main()

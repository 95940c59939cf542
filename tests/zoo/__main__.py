"""Runs architectures given by name, or all of them; ``--write`` puts the table into docs/architectures.md."""

from __future__ import annotations

import argparse
import time

from tests.zoo.catalogue import ARCHITECTURES, MINILM
from tests.zoo.run import Outcome, run
from tests.zoo.table import cells, write_table


def main() -> None:
    names = [architecture.name for architecture in (*ARCHITECTURES, MINILM)]
    parser = argparse.ArgumentParser(prog="scripts/zoo", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names)}")
    parser.add_argument("--write", action="store_true", help="write the table; needs a run of all")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(names)
    if unknown:
        parser.error(f"no such architecture: {', '.join(sorted(unknown))}")
    if arguments.write and arguments.names:
        parser.error("--write is for a run of all")
    outcomes: list[Outcome] = []
    for architecture in (*ARCHITECTURES, MINILM):
        if arguments.names and architecture.name not in arguments.names:
            continue
        start = time.perf_counter()
        outcomes.append(run(architecture))
        print(*cells(outcomes[-1]), f"{time.perf_counter() - start:.0f} s", sep=" | ", flush=True)
    if arguments.write:
        write_table(outcomes)


if __name__ == "__main__":
    main()

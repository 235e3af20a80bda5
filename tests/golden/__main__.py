"""Write the golden files: ``python -m tests.golden``. The tests that use them fail on any difference.

The pickles are kept as they are, since old ones must be read; delete their file to write new ones.
"""

from __future__ import annotations

import argparse
import json

from tests.golden import collected, files


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("--tests", action="store_true", help="compare the tests that pytest collects with tests.txt")
    parser.add_argument("--write-tests", action="store_true", help="write tests.txt")
    parser.add_argument("--write-faults", action="store_true", help="write which rule finds which planted fault (50 s)")
    asked = parser.parse_args()
    if asked.tests:
        print(*collected.compare(), sep="\n")
    elif asked.write_tests:
        collected.write()
    elif asked.write_faults:
        from tests.testing.planted import FAULTS, found

        table = {name: found(fault) for name, fault in FAULTS.items()}
        (files.FOLDER / "planted_faults.json").write_text(json.dumps(table, indent=1) + "\n")
    else:
        files.write()


if __name__ == "__main__":
    main()

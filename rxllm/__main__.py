"""The entry point of ``python -m rxllm``, the terminal client."""

import sys

from rxllm.cli import main

if __name__ == "__main__":
    sys.exit(main())

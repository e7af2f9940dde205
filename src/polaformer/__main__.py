"""`python -m polaformer`: the same as the `polaformer` command."""

import sys

from polaformer_cli import main

if __name__ == "__main__":
    sys.exit(main())

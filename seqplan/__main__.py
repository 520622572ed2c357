"""``python -m seqplan``: the command line."""

import sys

from seqplan.api.cli import main

if __name__ == "__main__":
    sys.exit(main())

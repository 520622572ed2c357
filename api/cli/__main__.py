"""``python -m seqplan.api.cli``: the command line."""

import sys

from seqplan.api.cli.frame.entry import main

if __name__ == "__main__":
    sys.exit(main())

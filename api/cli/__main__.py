"""``python -m seqplan.api.cli``: the command line."""

import sys

from seqplan.api.cli.framework.entry import main

if __name__ == "__main__":
    sys.exit(main())

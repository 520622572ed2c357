"""``python -m seqplan.runtime.check``: the process of a training check, see ``server.py``."""

import gc
import sys
from importlib import import_module

if __name__ == "__main__":
    gc.disable()  # each collection would walk all that is imported so far
    main = import_module("seqplan.runtime.check.server").main
    gc.freeze()
    gc.enable()
    sys.exit(main())

"""Settings of all tests."""

import os
import signal

from hypothesis import settings

# Before torch is imported, here and in processes of tests: a small operation is slower on several
# threads than on one, and where cores are few threads that wait for others take all their time.
os.environ["OMP_NUM_THREADS"] = "1"

# A busy machine is no failure: no test is judged by its time.
# Most is held by exact cases too: 60 examples are as many as the suite has time for.
settings.register_profile("seqplan", deadline=None, max_examples=60)
settings.load_profile("seqplan")

# A shell ignores Ctrl-C for what it starts in the background, and processes inherit that: tests of
# interrupts would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

"""Settings of all tests."""

from hypothesis import settings

# A busy machine is no failure: no test is judged by its time.
settings.register_profile("seqplan", deadline=None)
settings.load_profile("seqplan")

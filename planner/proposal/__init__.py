"""Candidate strategies for a data set: made once, before training.

Read ``make_proposal`` (the flow), ``candidates`` (the algorithm), ``search`` (one strategy for one
batch), ``neighbors`` (of the best) and ``document`` (the JSON that planning reads). ``search`` and
``neighbors`` serve this package alone.
"""

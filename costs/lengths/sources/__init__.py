"""One reader for each kind of file that has lengths.

Read ``collector`` first, which all readers give their lengths to; ``options`` are those of callers,
``token_count`` counts text, ``error`` is the one error. Each reader is imported when its kind
of file is met; ``saved_dataset`` finds the files of a folder that ``datasets`` saved. Public are
the modules named here, for ``seqplan.costs.lengths``.
"""

"""``seqplan profile COMMAND``: a module for each command.

``fitted_profile`` writes the profile of measured samples, for ``measure`` and ``merge``.
"""

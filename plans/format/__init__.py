"""Plans as text: canonical JSON out, checked fields in, files that are whole or absent.

Read ``codec`` (plan to JSON and back) and ``plan_file`` (JSON Lines), then their foundations:
``canonical``, ``fields``, ``decode``, ``atomic_file``; ``schema`` reads its JSON Schema,
``export`` writes plain lists of ids for those who read neither.
"""

"""The frame of all commands: from arguments to an exit code, options, environment and terminal.

Read ``commands`` (their names and modules), ``entry`` (runs one, every error is one line),
``command`` and ``options`` (shared by commands), ``renamed`` (old spellings), ``environment``
(defaults from ``SEQPLAN_*``), ``terminal`` (tables and progress), ``output_file``, ``extras``
(packages that are absent), ``server_options`` (a running service), ``job_file`` (of a sidecar). All
is public to the commands.
"""

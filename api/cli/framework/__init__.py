"""The frame of all commands: from arguments to an exit code, options, environment and terminal.

Read ``commands`` (their names and modules), ``entry`` (makes their parsers, runs one, every error
is one line), ``options`` (shared by commands), ``other_names`` (of options, in other programs),
``output`` (tables, progress and files), ``extras`` (packages that are absent), ``server_options``
(a running service), ``job_file`` (of a sidecar). All is public to the commands.

A command's module has ``DESCRIPTION`` and ``EXAMPLES``, which keep their line breaks,
``add_options`` and ``run``, which returns the exit code.
"""

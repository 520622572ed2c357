"""What every verb stands in: from arguments to an exit code, options, environment and terminal.

Read ``entry`` (a verb is found and run, every error is one line), ``command`` and ``options`` (what
verbs register alike), ``environment`` (defaults from ``SEQPLAN_*``), ``terminal`` (tables and
progress), ``output_file``, ``extras`` (packages that are absent); ``job_file`` and
``service_client`` read what a sidecar and a running service say. All is public to the verbs.
"""

"""Plans executed by local processes, compared with a single-process reference run.

Read ``check`` (comparison and tolerances), ``runs`` (both runs, concurrently), then
``processes`` (a server that forks and ends ranks).
"""

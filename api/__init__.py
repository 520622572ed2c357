"""How people and training jobs reach the planner: the command line and the service.

Read ``cli`` (a module per command), ``service`` (the engine that plans a store's jobs), ``store``
(its tables), ``rest`` (HTTP on top of both), ``report`` and ``dashboard`` (pages),
``check_training`` (plans executed by local ranks). The interfaces are the command line and HTTP;
of Python, ``cli.main`` alone is public.
"""

"""How people and training jobs reach the planner: the command line and the service.

Read ``cli`` (a module a verb), ``service`` (the engine that plans the jobs of a store), ``store``
(what it keeps), ``rest`` (HTTP on top of both), ``report`` and ``dashboard`` (what is looked at),
``check_training`` (plans executed by local ranks). The interfaces are the command line and HTTP;
of Python, ``cli.main`` alone is public.
"""

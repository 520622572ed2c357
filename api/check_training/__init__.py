"""Plans executed by local processes beside one process that knows no plan.

Read ``check`` (what is compared and allowed), ``runs`` (both runs, beside each other), then
``processes`` (what ranks are forked from, listened to and ended) and ``plan_pipe`` (plans for the
one process, each when it may run it).
"""

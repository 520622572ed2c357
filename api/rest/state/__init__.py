"""What an application keeps while it runs, and shares between its requests.

Read ``shared`` (how handlers get hold of it), ``plan_waiters`` (who waits for which plan),
``plan_queries`` (plans without a job), ``ack_writer`` (acknowledgements that share a transaction),
``metrics`` and ``service_log``.
"""

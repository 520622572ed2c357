"""Steps under ZeRO-3: rounds of sequence-parallel groups instead of pipelines.

Read ``plan_rounds`` (the flow and its bound), ``fill`` (rounds to target times) and ``assemble``
(from rounds to the plan). ``fill`` serves this room alone.
"""

__all__ = ["assemble", "plan_rounds"]

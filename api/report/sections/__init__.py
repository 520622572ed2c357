"""The parts of a report, one a file, each from results to HTML.

Read ``headline`` first, then what a question leads to; ``pick`` chooses what several of them show.
Public is one function a file, of the file's name.
"""

__all__ = [
    "curves",
    "gantt",
    "gantt_rows",
    "headline",
    "lengths",
    "load",
    "pick",
    "planning",
    "strategies",
    "sweeps",
    "throughput",
]

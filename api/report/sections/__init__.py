"""The parts of a report, one a file, each from results to HTML.

Read ``headline`` first, then what a question leads to; ``pick`` chooses what several of them show.
"""

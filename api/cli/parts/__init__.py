"""Parts of commands with several files; the commands are in the folder above.

``compare_output`` prints a comparison.
"""

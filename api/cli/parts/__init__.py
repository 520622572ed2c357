"""What verbs of several files are made of; the verbs themselves lie in the folder above.

``compare_output`` prints a comparison, ``profile_measured`` measures a profile and
``profile_derived`` derives one.
"""

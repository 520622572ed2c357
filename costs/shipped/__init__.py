"""Profiles that ship with the package, a JSON file each.

``catalogue`` lists and finds them; it is public.
"""

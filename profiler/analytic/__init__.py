"""The analytic cost model: time and memory of a scheme from data sheets, without a device.

Read ``hardware`` (devices and clusters), then ``kernels`` and ``links`` (one operation each),
``attention``, ``terms`` (a stage's time) and ``memory``; ``estimate`` puts a whole iteration
together, ``derive`` makes profiles, ``validate`` and ``validate_tables`` hold the model against
published figures. Public are the modules named here.
"""

__all__ = [
    "attention",
    "derive",
    "estimate",
    "hardware",
    "kernels",
    "links",
    "memory",
    "terms",
    "validate",
    "validate_tables",
]

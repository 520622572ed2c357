"""The analytic cost model: time and memory of a scheme from data sheets, without a device.

Read ``gpus`` (devices and single operations) and ``deployment`` (a model, and how it is trained),
then ``layers`` and ``attention``, ``terms`` (a stage's time) and ``memory``; ``estimate`` puts a
whole iteration together, ``derive`` makes profiles, ``complete`` adds to measured ones, and
``validation`` holds the model against published figures.
"""

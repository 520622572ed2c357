"""The analytic cost model: time and memory of a scheme from data sheets, without a device.

Read ``hardware`` (a device, a cluster), ``devices`` (those with a name) and ``deployment`` (what
is trained and how), then ``kernels``, ``attention_rates`` and ``links`` (one operation each),
``layers`` and ``attention``, ``terms`` (a stage's time) and ``memory``; ``estimate`` puts a whole
iteration together, ``derive`` makes profiles, ``complete`` adds to measured ones, and
``validation`` holds the model against published figures.
"""

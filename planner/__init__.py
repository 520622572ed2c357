"""Plans for steps: which strategies to train with, and which ranks run each sequence.

Importing the package imports nothing. In order of use: ``proposal`` makes candidate strategies for
a data set from ``strategies`` and ``bounds``; ``step`` (``lockstep`` if all ranks wait for each
other) plans each of the ``batches`` by ``placement``; ``workers`` plan ahead of the training;
``balance`` is for trainers of one scheme; ``comparison`` runs ``systems`` against it by
``simulation``. ``workload``, ``sync`` and ``errors`` belong to all of them.
"""

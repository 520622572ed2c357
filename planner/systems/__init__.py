"""Systems to compare with, and published methods as their papers define them.

``setting`` defines a compared system. ``megatron``, ``hotspa``, ``hydraulis``, ``deepspeed``,
``flexsp``, ``megatron_dcp``, ``megatron_packing``, ``karmarkar_karp``, ``trainers``,
``static_best`` and ``one_layout`` each return systems or the reason why there are none, with
``static_table`` (published configurations) and ``windows``; ``trainers`` has the rules of
``loongforge`` and ``veomni``. Hydraulis publishes
``greedy_dispatch`` and ``ilp_packing``, FlexSP ``flexsp_program``; ``cbc`` and ``buckets`` are
theirs alone.
"""

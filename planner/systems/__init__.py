"""The systems that ours is compared with, one file each.

Read ``setting`` first (what a system is made of). ``megatron``, ``hotspa``, ``hydraulis``,
``deepspeed``, ``flexsp``, ``megatron_dcp``, ``megatron_packing``, ``karmarkar_karp``,
``host_rules``, ``static_best`` and ``one_layout`` each offer trainers or say why there are none;
``static_table`` (published configurations) and ``windows`` serve them.
"""

__all__ = [
    "deepspeed",
    "flexsp",
    "host_rules",
    "hotspa",
    "hydraulis",
    "karmarkar_karp",
    "megatron",
    "megatron_dcp",
    "megatron_packing",
    "one_layout",
    "setting",
    "static_best",
]

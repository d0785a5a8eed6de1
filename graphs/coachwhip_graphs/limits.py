"""The sizes that the kernels run, free of MAX, for the ops and for those who read configs.

The Mojo sources hold the same numbers, where they size registers, stack buffers and shared memory.
"""

DSTATE_LIMIT = 256
"""Largest dstate of `ssm_scan`."""
HEADDIM_LIMIT = 256
"""Largest headdim of `ssm_scan`."""
HEAD_VALUES_LIMIT = 32768
"""Largest headdim * dstate of `ssm_scan`."""
D_CONV_LIMITS = (2, 4)
"""Fewest and most taps of `conv1d`."""
GROUPS_LIMIT = 64
"""Most groups of experts of `moe_route`."""
EXPERTS_LIMIT = 1024
"""Most experts of `moe_route`."""
VOCAB_LIMIT = 524288
"""Most tokens of `sample`."""

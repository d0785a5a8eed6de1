"""State-space and attention kernels of coachwhip: math files, then one registration file."""

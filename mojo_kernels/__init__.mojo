"""State-space and attention kernels of coachwhip: math files, and files that register their ops."""

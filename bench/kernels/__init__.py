"""Benchmarks of the kernels: `python -m bench.kernels`."""

"""Benchmarks of offline batches."""

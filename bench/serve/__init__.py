"""Benchmarks of the endpoint, as its clients see it."""

"""Benchmarks of whole engines."""

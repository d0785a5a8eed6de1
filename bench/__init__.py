"""Benchmarks of coachwhip, beside what the machine can do and what others do."""

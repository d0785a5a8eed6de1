"""Ops that reach what the machine can do: the ceilings that kernels are measured against."""

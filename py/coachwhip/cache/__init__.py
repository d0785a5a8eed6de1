"""Slots and pages: who owns which, and what prefix each stands for. No max and no torch."""

"""Slots and pages: who owns which. Plain data, no max and no torch."""

"""Drafts: tokens proposed ahead of the model."""

"""Which rows run in a step, with which slots and pages. Plain data, no max and no torch."""

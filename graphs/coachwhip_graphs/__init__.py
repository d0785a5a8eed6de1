"""MAX graph builders for Mamba2 and hybrid models. Imports max and numpy, never coachwhip."""

"""How hypothesis runs the properties of the kernels."""

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

PROPERTY = settings(
    max_examples=25,  # per configuration of an op
    deadline=None,  # the first example compiles
    derandomize="CI" in os.environ,
    database=None,  # examples hold sizes that change with the configurations
    suppress_health_check=[HealthCheck.too_slow],
)
"""Settings of a property."""

SEEDS = st.integers(0, 2**32 - 1)
"""Seeds of the numbers that fill an example's arrays."""

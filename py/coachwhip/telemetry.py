"""Turns off, by default, what MAX and Mojo, and huggingface_hub, would send to their makers.

MAX reads the settings from the environment when its first session or device is created, so
importing this module must come before that: `coachwhip/__init__.py` imports it first, and pytest
loads it as a plugin. A value that the user has set stays; an empty one counts as unset, since MAX
takes it for "on".
"""

import os

# Without the first setting every process that creates a session, and every `mojo` command, looks
# up and contacts a telemetry server. It understands `0` and `false`; `off` leaves it on.
SETTINGS = {
    "MODULAR_TELEMETRY_ENABLED": "0",
    "MODULAR_CRASH_REPORTING_ENABLED": "0",
    "MAX_SERVE_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}


def turn_off() -> None:
    """Sets each of `SETTINGS` in this process and, by inheritance, in those it starts."""
    for name, value in SETTINGS.items():
        if not os.environ.get(name):
            os.environ[name] = value


turn_off()

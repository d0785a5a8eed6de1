"""What a user may set about the endpoint itself."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"
LOOPBACKS = (LOOPBACK, "localhost", "::1")
MIB = 1 << 20


@dataclass(frozen=True)
class ServeOptions:
    """Options of the endpoint.

    Raises:
        ConfigError: A value is out of its range.
    """

    host: str | None = None
    """Address to listen on; unset is this machine only, or all addresses with an API key."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_keys: tuple[str, ...] = ()
    """Keys of which a request must have one; none lets everyone in."""
    served_model_names: tuple[str, ...] = ()
    """Names of the model in requests and responses; unset is the model as it was given."""
    max_queue_size: int = 512
    """Most requests that wait; further ones are refused with 429."""
    request_timeout: float | None = None
    """Most seconds of a request; unset is no limit."""
    drain_seconds: float = 30.0
    """Seconds that running requests have left when the server is told to end."""
    max_body_bytes: int = 16 * MIB
    """Most bytes of a request's body."""
    log_format: str = "text"
    """Lines of the log: text or json."""

    def __post_init__(self) -> None:
        self._within("port", 0, 65535, "a port, or 0 for a free one")
        self._within("max_queue_size", 0, None, "a whole number from 0")
        self._within("drain_seconds", 0, None, "a number of seconds from 0")
        self._within("max_body_bytes", 1024, None, "a number of bytes from 1024")
        if self.request_timeout is not None and not self.request_timeout > 0:
            raise ConfigError(
                "value", "request_timeout", self.request_timeout, "above 0", "correct it"
            )
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or " " in key:
                raise ConfigError(
                    "value", "api_key", "***", "printable ASCII without spaces", "choose another"
                )

    @property
    def address(self) -> str:
        """The host to listen on."""
        return self.host or (EVERYWHERE if self.api_keys else LOOPBACK)

    def _within(self, name: str, low: float, high: float | None, allowed: str) -> None:
        value = getattr(self, name)
        if not low <= value or (high is not None and value > high):
            raise ConfigError("value", name, value, allowed, "correct it")

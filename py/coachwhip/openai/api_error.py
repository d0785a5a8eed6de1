"""An error as an OpenAI client gets it."""

from __future__ import annotations

import re

from ..errors import CoachwhipError, RequestError

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
_PARAMS = {"prompt_token_ids": "prompt", "sampling_params": None, "chat_template": "messages"}
"""Names of the engine that a body spells otherwise."""


class ApiError(CoachwhipError):
    """A request that is not served, with its HTTP status.

    Args:
        status: HTTP status.
        message: One line with the field, its value and the fix.
        type: OpenAI's kind of error; by the status when None.
        param: Field of the body, None where it is no field's fault.
        code: OpenAI's stable name of the error, None where it has none.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.type = type or (INVALID_REQUEST if status < 500 else SERVER_ERROR)
        self.param, self.code = param, code

    def body(self) -> dict[str, object]:
        """Returns OpenAI's error object, the whole body of the response."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    @classmethod
    def of(cls, error: RequestError) -> ApiError:
        """Returns what the engine's own check found as a 400 that names the body's field."""
        root = re.split(r"[.\[]", error.field, maxsplit=1)[0]
        param = _PARAMS.get(root, error.field)
        return cls(400, str(error), param=param, code="invalid_value")


def context_length_exceeded(
    tokens: int, limit: int, field: str, at_least: bool = False
) -> ApiError:
    """Returns the error about a prompt that leaves no room for a token of text.

    Args:
        tokens: The prompt's tokens.
        limit: `max_model_len`.
        field: Field that holds the prompt.
        at_least: Whether the tokens were not counted to the end.
    """
    count = f"at least {tokens}" if at_least else str(tokens)
    return ApiError(
        400,
        f"this model's context has {limit} tokens, but {field} has {count}; at most {limit - 1} "
        "leave room for a text, so shorten it",
        param=field,
        code="context_length_exceeded",
    )


def model_not_found(name: str, served: tuple[str, ...]) -> ApiError:
    """Returns the error about a model that is not served."""
    return ApiError(
        404,
        f'model is "{name}", which is not served here; served: {", ".join(served)}',
        param="model",
        code="model_not_found",
    )

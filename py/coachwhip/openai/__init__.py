"""OpenAI's protocol as plain data: bodies in, engine requests, bodies out.

One translation for `coachwhip serve` and `coachwhip batch`. Nothing here knows HTTP or imports MAX:

    body = parse_body(raw, url)                  # pydantic, or ApiError
    job = translate(body, url, frontend)         # engine requests, or ApiError
    ...                                          # the engine finishes job.requests
    job.response(outputs)                        # the response body
"""

from .api_error import ApiError
from .bodies import ChatBody, CompletionBody
from .frontend import Frontend
from .job import EngineRequest, Job
from .parse import CHAT_URL, COMPLETIONS_URL, URLS, parse_body, parse_json
from .translate import translate

__all__ = [
    "CHAT_URL",
    "COMPLETIONS_URL",
    "URLS",
    "ApiError",
    "ChatBody",
    "CompletionBody",
    "EngineRequest",
    "Frontend",
    "Job",
    "parse_body",
    "parse_json",
    "translate",
]

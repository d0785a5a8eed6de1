"""Routes about the model and the server: models, health, version, cache, metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..openai.api_error import model_not_found
from ..version import __version__
from .error_response import RETRY_S, Unavailable
from .openapi import errors
from .service import Service

router = APIRouter()


@router.get("/v1/models", tags=["models"], responses=errors(401))
async def models(request: Request) -> dict[str, object]:
    """Returns the model under each of its names."""
    service = _service(request)
    names = service.frontend.served_names
    return {"object": "list", "data": [_model(service, name) for name in names]}


@router.get("/v1/models/{name:path}", tags=["models"], responses=errors(401, 404))
async def model(request: Request, name: str) -> dict[str, object]:
    """Returns the model, by one of its names."""
    service = _service(request)
    if name not in service.frontend.served_names:
        raise model_not_found(name, service.frontend.served_names)
    return _model(service, name)


@router.get("/health", tags=["server"], responses=errors(503))
async def health(request: Request) -> JSONResponse:
    """Says 200 if and only if a step can run."""
    reason = _service(request).health()
    if reason is not None:
        raise Unavailable(503, reason, "not_healthy", RETRY_S)
    return JSONResponse({"status": "ok"})


@router.get("/version", tags=["server"])
async def version() -> dict[str, str]:
    """Returns coachwhip's version."""
    return {"version": __version__}


@router.post("/reset_prefix_cache", tags=["server"], responses=errors(401, 503))
async def reset_prefix_cache(request: Request) -> dict[str, str]:
    """Forgets all cached prefixes; requests that run go on."""
    await _service(request).client.reset_prefix_cache()
    return {"status": "ok"}


@router.get("/metrics", tags=["server"], response_class=Response)
async def metrics(request: Request) -> Response:
    """Returns all metrics in Prometheus' text format."""
    service = _service(request)
    await service.client.look()
    text = generate_latest(service.metrics.registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _service(request: Request) -> Service:
    return request.app.state.service


def _model(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "coachwhip",
        "root": service.frontend.served_names[0],
        "parent": None,
        "max_model_len": service.frontend.config.max_model_len,
    }

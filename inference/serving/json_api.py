"""The JSON API: what the model is, what it finds in an image."""
from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from .. import ImageError, Model
from .middleware import RETRY
from .responses import answer_of, describe, drawing_of, encoded
from .service import Busy, ModelError, Served, Service, TimedOut
from .uploads import UploadError

METHODS = ('GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS')
ROUTES = {'/health': 'GET', '/api/model': 'GET', '/api/predict': 'POST'}
IMAGE_BODY: dict[str, Any] = {
    'requestBody': {
        'required': True,
        'description': 'The image file itself, or a form with the file as `image`.',
        'content': {
            'application/octet-stream': {
                'schema': {
                    'type': 'string',
                    'format': 'binary'
                }
            },
            'multipart/form-data': {
                'schema': {
                    'type': 'object',
                    'properties': {
                        'image': {
                            'type': 'string',
                            'format': 'binary'
                        }
                    }
                }
            },
        },
    }
}
Share = Annotated[float, Query(ge=0, le=1)]  # no other parameter is a number: see sentence_of


class Refusal(BaseModel):
    """What is wrong with a request."""
    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    '4XX': dict(model=Refusal, description='The request cannot be answered.'),
    '5XX': dict(model=Refusal, description='The server or the model failed.'),
}


def build_api(service: Service) -> FastAPI:
    """The routes under ``/api`` and ``/health``; ``/api/openapi.json`` describes them."""
    # FastAPI's pages of documentation load scripts from elsewhere
    app = FastAPI(title='Colonnade', openapi_url='/api/openapi.json', docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, refuse_values)
    model = describe(service.model)
    names = parameters_of(service.model)

    @app.get('/health')
    def health() -> dict[str, str]:
        """Whether the server answers."""
        return dict(status='ok')

    @app.get('/api/model')
    def about_the_model() -> dict[str, Any]:
        """What the model is, and what it accepts."""
        limits = service.limits
        return {**model, 'max_bytes': limits.max_bytes, 'max_pixels': limits.max_pixels}

    @app.post('/api/predict', openapi_extra=IMAGE_BODY, responses=REFUSALS)
    async def predict(request: Request,
                      threshold: Share = 0.3,
                      opacity: Share = 0.5,
                      masks: Literal['none', 'rle'] = 'none',
                      format: Literal['json', 'png'] = 'json') -> Response:
        """What the model finds in an image, as JSON or drawn over it."""
        check_names(request, names)
        content = await content_of(request)

        def respond() -> Response:
            served = predicted(service, content)
            if format == 'png':
                with service.images:
                    drawn = drawing_of(served, threshold=threshold, opacity=opacity)
                    return Response(encoded(drawn, 'PNG'), media_type='image/png')
            return JSONResponse(answer_of(served, threshold=threshold, masks=masks == 'rle'))

        return await run_in_threadpool(respond)

    refuse_other_methods(app)
    return app


def parameters_of(model: Model) -> tuple[str, ...]:
    """The names of the parameters that change a model's answers."""
    names = ('opacity', 'masks', 'format')
    return names if model.kind == 'labels' else ('threshold', *names)


def refuse_other_methods(app: FastAPI) -> None:
    """Add routes that say which method is right; Gradio would answer 404."""
    for path, method in ROUTES.items():
        others = [other for other in METHODS if other != method]
        app.add_route(path, wrong_method(method), others, include_in_schema=False)


def wrong_method(allowed: str) -> Callable[[Request], Response]:
    """An endpoint for other methods than the one that is allowed."""

    def refuse(request: Request) -> Response:
        raise HTTPException(405, f'{request.url.path} takes {allowed}, got {request.method}',
                            dict(Allow=allowed))

    return refuse


def refuse_values(request: Request, error: Exception) -> Response:
    """The answer to impossible values of parameters."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse(dict(detail='; '.join(map(sentence_of, error.errors()))), 422)


def sentence_of(error: dict[str, Any]) -> str:
    """What is wrong with a parameter's value, as pydantic found it."""
    legal = error.get('ctx', {}).get('expected', 'from 0 to 1').replace("'", '')
    return f'{error["loc"][-1]} must be {legal}, got {error["input"]}'


def check_names(request: Request, names: tuple[str, ...]) -> None:
    """Raise an HTTPException for parameters that would have no effect on the model's answer."""
    unknown = [name for name in request.query_params if name not in names]
    if unknown:
        raise HTTPException(
            422, f'this model has no parameter {", ".join(unknown)}: it has {", ".join(names)}')


async def content_of(request: Request) -> bytes:
    """The file in a request: its body, or the first file of a form."""
    if not request.headers.get('content-type', '').startswith('multipart/form-data'):
        return await request.body()
    async with request.form(max_files=1, max_fields=10) as form:
        fields = [name for name, value in form.items() if not isinstance(value, UploadFile)]
        for value in form.values():
            if isinstance(value, UploadFile):
                if fields:
                    raise HTTPException(
                        422, f'the form has the field {fields[0]}: parameters are '
                        'part of the URL, as in /api/predict?opacity=0.5')
                return await value.read()
    raise HTTPException(400, 'the form has no file: send it as curl -F image=@FILE does')


def predicted(service: Service, content: bytes) -> Served:
    """What the model finds, errors as HTTP has them."""
    try:
        return service.predict(content)
    except UploadError as error:
        raise HTTPException(error.status, str(error)) from error
    except ImageError as error:
        raise HTTPException(400, str(error)) from error
    except Busy as error:
        raise HTTPException(503, str(error), RETRY) from error
    except TimedOut as error:
        raise HTTPException(504, str(error)) from error
    except ModelError as error:
        raise HTTPException(500, str(error)) from error

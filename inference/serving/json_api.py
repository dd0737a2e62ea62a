"""Routes of the server: a JSON API that describes the model and runs it on images, and the page."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.routing import Route

from .. import ImageError, Model
from ..packages.package import WEIGHTS
from .middleware import RETRY
from .service import RequestError, ServerBusyError, Service, TimedPrediction
from .uploads import UploadError

IMAGE_SCHEMA = {'type': 'string', 'format': 'binary'}
FORM_SCHEMA = {'type': 'object', 'properties': {'image': IMAGE_SCHEMA}}
IMAGE_BODY: dict[str, Any] = {
    'requestBody': {
        'required': True,
        'description': 'Image file, or a form with the file as `image`.',
        'content': {
            'application/octet-stream': {'schema': IMAGE_SCHEMA},
            'multipart/form-data': {'schema': FORM_SCHEMA},
        },
    }
}  # yapf: disable
MEDIA_TYPES = {
    'page.html': 'text/html',
    'page.css': 'text/css',
    'page.js': 'text/javascript',
    'icon.svg': 'image/svg+xml',
}
Fraction = Annotated[float, Query(ge=0, le=1)]  # the only numeric type, see reject_values


class ErrorDetail(BaseModel):
    """Error message of a response."""
    detail: str


ERRORS: dict[int | str, dict[str, Any]] = {
    '4XX': dict(model=ErrorDetail, description='The request is invalid.'),
    '5XX': dict(model=ErrorDetail, description='The server or the model failed.'),
}


def build_api(service: Service, figures: Any) -> FastAPI:
    """Return an application with the routes ``/api/…``, see ``/api/openapi.json``.

    ``figures`` is the module :mod:`colonnade.visualization.figures`, which cannot be imported here.
    """
    # FastAPI's documentation pages would load scripts from other servers.
    app = FastAPI(title='Colonnade', openapi_url='/api/openapi.json', docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, reject_values)
    app.add_exception_handler(405, reject_method)
    names = list(figures.available_methods(service.model))
    description = dict(
        describe_model(service.model),
        max_bytes=service.limits.max_bytes,
        max_pixels=service.limits.max_pixels,
        figures=names)
    only_detectors = ('threshold', ) if service.model.kind in ('masks', 'boxes') else ()
    parameters = (*only_detectors, 'opacity', 'masks', 'format')

    @app.get('/healthz', responses=ERRORS)
    @app.get('/readyz', responses=ERRORS)
    def check_health() -> dict[str, str]:
        """Return a fixed response while the server works; ``/readyz`` fails at its shutdown."""
        if not service.is_alive():
            raise HTTPException(503, 'the thread of the model has ended: restart the server')
        return dict(status='ok')

    @app.get('/metrics', response_class=PlainTextResponse)
    def report_metrics() -> Response:
        """Return the metrics of the server in Prometheus' text format."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    @app.get('/api/model')
    def describe() -> dict[str, Any]:
        """Describe the model and the limits of images."""
        return description

    @app.post('/api/predict', openapi_extra=IMAGE_BODY, responses=ERRORS)
    async def predict(request: Request,
                      threshold: Fraction = 0.3,
                      opacity: Fraction = 0.5,
                      masks: Literal['none', 'rle'] = 'none',
                      format: Literal['json', 'png'] = 'json') -> Response:
        """Predict an image; return JSON or a drawing."""
        check_parameters(request, parameters)

        def respond(content: bytes) -> Response:
            prediction = service.predict(content)
            if format == 'png':
                with service.decoding:
                    return build_png(prediction.draw(threshold=threshold, opacity=opacity))
            return JSONResponse(format_prediction(prediction, threshold, masks == 'rle'))

        return await respond_to_image(respond, request)

    @app.post('/api/image', openapi_extra=IMAGE_BODY, responses=ERRORS)
    async def decode(request: Request) -> Response:
        """Return the decoded image as PNG: RGB, rotated according to EXIF."""
        check_parameters(request, ())
        return await respond_to_image(
            lambda content: build_png(Image.fromarray(service.read(content))), request)

    @app.post('/api/figures/{name}', openapi_extra=IMAGE_BODY, responses=ERRORS)
    async def draw_figure(request: Request, name: str) -> Response:
        """Return a figure of the activations for an image as PNG."""
        check_parameters(request, ())
        if name not in names:
            raise HTTPException(
                404, f'no figure {name!r} of this model: expected one of '
                f'{", ".join(names) or "none"}')

        def respond(content: bytes) -> Response:
            image = service.read(content)
            png = service.call(lambda: figures.figure_to_bytes(
                figures.visualize(service.load_plain(), image, name), 'png'))
            return Response(png, media_type='image/png')

        return await respond_to_image(respond, request)

    return app


def add_page(app: FastAPI) -> None:
    """Add the routes of the page: ``/`` and the files that it loads."""
    folder = files(__package__) / 'page'
    for name, media_type in MEDIA_TYPES.items():
        content = (folder / name).read_bytes()
        response = Response(content, 200, {'Cache-Control': 'no-cache'}, media_type)
        path = '/' if name == 'page.html' else f'/{name}'
        app.router.routes.append(Route(path, response, methods=['GET', 'HEAD']))


async def respond_to_image(respond: Callable[[bytes], Response], request: Request) -> Response:
    """Return the response to the image of a request, computed in a thread."""
    content = await read_image_file(request)
    try:
        return await run_in_threadpool(respond, content)
    except (UploadError, RequestError) as error:
        headers = RETRY if isinstance(error, ServerBusyError) else None
        raise HTTPException(error.status, str(error), headers) from error
    except ImageError as error:
        raise HTTPException(400, str(error)) from error


def reject_values(request: Request, error: Exception) -> Response:
    """Return the response to invalid parameter values."""
    assert isinstance(error, RequestValidationError)
    messages = []
    for problem in error.errors():
        expected = problem.get('ctx', {}).get('expected', 'between 0 and 1').replace("'", '')
        messages.append(f'{problem["loc"][-1]} must be {expected}, got {problem["input"]}')
    return JSONResponse(dict(detail='; '.join(messages)), 422)


def reject_method(request: Request, error: Exception) -> Response:
    """Return the response to a method that a route does not support."""
    assert isinstance(error, StarletteHTTPException)
    allowed = (error.headers or {}).get('Allow', '')
    detail = f'{request.url.path} expects {allowed}, got {request.method}'
    return JSONResponse(dict(detail=detail), 405, error.headers)


def check_parameters(request: Request, names: tuple[str, ...]) -> None:
    """Raise an HTTPException for parameters that would have no effect."""
    if unknown := [name for name in request.query_params if name not in names]:
        expected = f'expected {", ".join(names)}' if names else 'expected no parameters'
        raise HTTPException(422, f'unknown parameter {", ".join(unknown)}: {expected}')


async def read_image_file(request: Request) -> bytes:
    """Return the file in a request: its body, or the first file of a form."""
    if not request.headers.get('content-type', '').startswith('multipart/form-data'):
        return await request.body()
    async with request.form(max_files=1, max_fields=10) as form:
        fields = [name for name, value in form.items() if not isinstance(value, UploadFile)]
        for value in form.values():
            if isinstance(value, UploadFile):
                if fields:
                    raise HTTPException(
                        422, f'unexpected form field {fields[0]}: pass parameters in the URL, as '
                        'in /api/predict?opacity=0.5')
                return await value.read()
    raise HTTPException(400, 'the form has no file: send it as with curl -F image=@FILE')


def build_png(image: Image.Image) -> Response:
    """Return an image as a response."""
    buffer = BytesIO()
    image.save(buffer, 'PNG')
    return Response(buffer.getvalue(), media_type='image/png')


def describe_model(model: Model) -> dict[str, Any]:
    """Describe a model without exposing paths of this host."""
    backbone: Mapping[str, Any] = model.cfg.model.get('backbone') or {}
    return dict(
        model=model.name,
        backbone=model.backbone_name,
        arch=backbone.get('arch'),
        kind=model.kind,
        classes=list(model.classes),
        palette=[list(color) for color in model.palette],
        parameters=model.num_parameters,
        weights=get_weights_name(model.source),
        device=str(model.device))


def get_weights_name(source: str) -> str:
    """Return the file name of weights, or the folder name of a package."""
    path = Path(source)
    return path.absolute().parent.name if path.name == WEIGHTS else path.name


def format_prediction(prediction: TimedPrediction, threshold: float, masks: bool) -> dict[str, Any]:
    """Return the JSON response of ``POST /api/predict``, with RLEs if ``masks`` is True."""
    result = prediction.result
    seconds = dict(
        decoding=prediction.decoding, waiting=prediction.waiting, model=prediction.computing)
    return dict(
        height=result.size[0],
        width=result.size[1],
        **result.filter_by_score(threshold).to_json(masks=masks),
        seconds={
            name: round(value, 4)
            for name, value in seconds.items()
        })

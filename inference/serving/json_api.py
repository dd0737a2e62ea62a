"""The JSON API: what the model is, and what it finds in an image."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from PIL import Image
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException

from .. import ImageError, Model
from ..packages.package import WEIGHTS
from .middleware import RETRY
from .service import ModelError, Prediction, RequestTimeoutError, ServerBusyError, Service
from .uploads import UploadError

IMAGE_SCHEMA = {'type': 'string', 'format': 'binary'}
FORM_SCHEMA = {'type': 'object', 'properties': {'image': IMAGE_SCHEMA}}
IMAGE_BODY: dict[str, Any] = {
    'requestBody': {
        'required': True,
        'description': 'The image file itself, or a form with the file as `image`.',
        'content': {
            'application/octet-stream': {'schema': IMAGE_SCHEMA},
            'multipart/form-data': {'schema': FORM_SCHEMA},
        },
    }
}  # yapf: disable
Fraction = Annotated[float, Query(ge=0, le=1)]  # the only numbers: see format_value_error


class Figures(Protocol):
    """What draws figures of what a model looks at: :mod:`colonnade.visualization.figures`."""

    def available_methods(self, model: Any) -> tuple[str, ...]:
        """Return the names of the figures that a model has."""

    def picture(self, model: Any, image: Any, name: str) -> Any:
        """Return a figure of an image."""

    def as_bytes(self, figure: Any, kind: str) -> bytes:
        """Return the content of a file of a figure."""


class Refusal(BaseModel):
    """What is wrong with a request."""
    detail: str


REFUSALS: dict[int | str, dict[str, Any]] = {
    '4XX': dict(model=Refusal, description='The request cannot be answered.'),
    '5XX': dict(model=Refusal, description='The server or the model failed.'),
}


def build_api(service: Service, figures: Figures) -> FastAPI:
    """Return an application with the routes under ``/api``, and ``/health``.

    ``/api/openapi.json`` describes them.

    Args:
        service: Service that answers.
        figures: Module that draws figures.
    """
    # FastAPI's pages of documentation load scripts from elsewhere
    app = FastAPI(title='Colonnade', openapi_url='/api/openapi.json', docs_url=None, redoc_url=None)
    app.add_exception_handler(RequestValidationError, refuse_values)
    app.add_exception_handler(405, refuse_method)
    names = list(figures.available_methods(service.model))
    about = dict(
        describe_model(service.model),
        max_bytes=service.limits.max_bytes,
        max_pixels=service.limits.max_pixels,
        figures=names)
    parameters = get_parameters(service.model)

    @app.get('/health')
    def health() -> dict[str, str]:
        """Whether the server answers."""
        return dict(status='ok')

    @app.get('/api/model')
    def about_the_model() -> dict[str, Any]:
        """What the model is, and what it accepts."""
        return about

    @app.post('/api/predict', openapi_extra=IMAGE_BODY, responses=REFUSALS)
    async def predict(request: Request,
                      threshold: Fraction = 0.3,
                      opacity: Fraction = 0.5,
                      masks: Literal['none', 'rle'] = 'none',
                      format: Literal['json', 'png'] = 'json') -> Response:
        """What the model finds in an image, as JSON or drawn over it."""
        check_parameters(request, parameters)

        def respond(content: bytes) -> Response:
            prediction = service.predict(content)
            if format == 'png':
                with service.images:
                    return build_png(prediction.draw(threshold=threshold, opacity=opacity))
            return JSONResponse(format_prediction(prediction, threshold, masks == 'rle'))

        return await answer(respond, request)

    @app.post('/api/image', openapi_extra=IMAGE_BODY, responses=REFUSALS)
    async def decode(request: Request) -> Response:
        """The image as the model sees it, as PNG: rotated as its EXIF says, in RGB."""
        check_parameters(request, ())

        def respond(content: bytes) -> Response:
            return build_png(Image.fromarray(service.read(content)))

        return await answer(respond, request)

    @app.post('/api/figures/{name}', openapi_extra=IMAGE_BODY, responses=REFUSALS)
    async def draw_figure(request: Request, name: str) -> Response:
        """A figure of what the model looks at in an image, as PNG."""
        check_parameters(request, ())
        if name not in names:
            raise HTTPException(
                404, f'this model has no figure {name!r}: it has {", ".join(names) or "none"}')

        def respond(content: bytes) -> Response:
            image = service.read(content)
            png = service.call(
                lambda: figures.as_bytes(figures.picture(service.load_plain(), image, name), 'png'))
            return Response(png, media_type='image/png')

        return await answer(respond, request)

    return app


async def answer(respond: Callable[[bytes], Response], request: Request) -> Response:
    """Return the response to the image of a request, computed in a thread."""
    content = await read_image_file(request)

    def respond_or_refuse() -> Response:
        with http_errors():
            return respond(content)

    return await run_in_threadpool(respond_or_refuse)


@contextmanager
def http_errors() -> Iterator[None]:
    """Context manager that raises errors of the service as HTTPExceptions."""
    try:
        yield
    except UploadError as error:
        raise HTTPException(error.status, str(error)) from error
    except ImageError as error:
        raise HTTPException(400, str(error)) from error
    except ServerBusyError as error:
        raise HTTPException(503, str(error), RETRY) from error
    except RequestTimeoutError as error:
        raise HTTPException(504, str(error)) from error
    except ModelError as error:
        raise HTTPException(500, str(error)) from error


def get_parameters(model: Model) -> tuple[str, ...]:
    """Return the names of the parameters that change a model's predictions."""
    names = ('opacity', 'masks', 'format')
    return names if model.kind == 'labels' else ('threshold', *names)


def refuse_values(request: Request, error: Exception) -> Response:
    """Return the response to impossible values of parameters."""
    assert isinstance(error, RequestValidationError)
    return JSONResponse(dict(detail='; '.join(map(format_value_error, error.errors()))), 422)


def format_value_error(error: dict[str, Any]) -> str:
    """Return what is wrong with a parameter's value, from an error of pydantic."""
    legal = error.get('ctx', {}).get('expected', 'from 0 to 1').replace("'", '')
    return f'{error["loc"][-1]} must be {legal}, got {error["input"]}'


def refuse_method(request: Request, error: Exception) -> Response:
    """Return the response to a method that a route does not have."""
    assert isinstance(error, StarletteHTTPException)
    allowed = (error.headers or {}).get('Allow', '')
    detail = f'{request.url.path} takes {allowed}, got {request.method}'
    return JSONResponse(dict(detail=detail), 405, error.headers)


def check_parameters(request: Request, names: tuple[str, ...]) -> None:
    """Raise an HTTPException for parameters that would have no effect on the answer."""
    if unknown := [name for name in request.query_params if name not in names]:
        raise HTTPException(
            422, f'this model has no parameter {", ".join(unknown)}: it has {", ".join(names)}'
            if names else f'{request.url.path} has no parameters, got {", ".join(unknown)}')


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
                        422, f'the form has the field {fields[0]}: parameters are '
                        'part of the URL, as in /api/predict?opacity=0.5')
                return await value.read()
    raise HTTPException(400, 'the form has no file: send it as curl -F image=@FILE does')


def build_png(image: Image.Image) -> Response:
    """Return an image as a response."""
    buffer = BytesIO()
    image.save(buffer, 'PNG')
    return Response(buffer.getvalue(), media_type='image/png')


def describe_model(model: Model) -> dict[str, Any]:
    """Return what a model is, without naming directories of this machine."""
    backbone: Mapping[str, Any] = model.cfg.model.get('backbone') or {}
    return dict(
        model=type(model.module).__name__,
        backbone=model.backbone_name,
        arch=backbone.get('arch'),
        kind=model.kind,
        classes=list(model.classes),
        palette=[list(color) for color in model.palette],
        parameters=model.num_parameters,
        weights=get_weights_name(model.source),
        device=str(model.device))


def get_weights_name(source: str) -> str:
    """Return the name of a file, or of the directory of a package, whose files are named alike."""
    path = Path(source)
    return path.absolute().parent.name if path.name == WEIGHTS else path.name


def format_prediction(prediction: Prediction, threshold: float, masks: bool) -> dict[str, Any]:
    """Return the answer of ``POST /api/predict``.

    Args:
        prediction: Prediction for an image.
        threshold: Instances of lower scores are left out.
        masks: Whether to add masks, as RLEs.
    """
    result = prediction.result
    seconds = dict(
        decoding=prediction.decoding, waiting=prediction.waiting, model=prediction.computing)
    return dict(
        height=result.size[0],
        width=result.size[1],
        **result.above(threshold).to_json(masks=masks),
        seconds={
            name: round(value, 4)
            for name, value in seconds.items()
        })

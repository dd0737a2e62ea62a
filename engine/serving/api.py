"""The JSON API: what the model is, what it finds in an image."""
from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile

from ..prediction import ImageError
from .answers import answer_of, describe, drawing_of, encoded
from .service import Busy, ModelError, Served, Service, TimedOut
from .uploads import UploadError

RETRY_AFTER = '2'  # seconds
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
Share = Annotated[float, Query(ge=0, le=1)]


def build_api(service: Service) -> FastAPI:
    """The routes under ``/api`` and ``/health``; ``/api/openapi.json`` describes them."""
    # FastAPI's pages of documentation load scripts from elsewhere
    app = FastAPI(title='Colonnade', openapi_url='/api/openapi.json', docs_url=None, redoc_url=None)
    model = describe(service.model)

    @app.get('/health')
    def health() -> dict[str, str]:
        """Whether the server answers."""
        return dict(status='ok')

    @app.get('/api/model')
    def about_the_model() -> dict[str, Any]:
        """What the model is, and what it accepts."""
        limits = service.limits
        return {**model, 'max_bytes': limits.max_bytes, 'max_pixels': limits.max_pixels}

    @app.post('/api/predict', openapi_extra=IMAGE_BODY)
    async def predict(request: Request,
                      threshold: Share = 0.3,
                      opacity: Share = 0.5,
                      masks: Literal['none', 'rle'] = 'none',
                      format: Literal['json', 'png'] = 'json') -> Response:
        """What the model finds in an image, as JSON or drawn over it."""
        content = await content_of(request)

        def respond() -> Response:
            served = predicted(service, content)
            if format == 'png':
                with service.images:
                    drawn = drawing_of(served, threshold=threshold, opacity=opacity)
                    return Response(encoded(drawn, 'PNG'), media_type='image/png')
            return JSONResponse(answer_of(served, threshold=threshold, masks=masks == 'rle'))

        return await run_in_threadpool(respond)

    return app


async def content_of(request: Request) -> bytes:
    """The file in a request: its body, or the first file of a form."""
    if not request.headers.get('content-type', '').startswith('multipart/form-data'):
        return await request.body()
    async with request.form(max_files=1, max_fields=10) as form:
        for value in form.values():
            if isinstance(value, UploadFile):
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
        raise HTTPException(503, str(error), {'Retry-After': RETRY_AFTER}) from error
    except TimedOut as error:
        raise HTTPException(504, str(error)) from error
    except ModelError as error:
        raise HTTPException(500, str(error)) from error

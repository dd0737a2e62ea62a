"""The page: files of ours that the browser loads from this server, and no others."""
from __future__ import annotations

from importlib.resources import files

from fastapi import FastAPI
from fastapi.responses import Response

MEDIA_TYPES = {
    'page.html': 'text/html',
    'page.css': 'text/css',
    'page.js': 'text/javascript',
    'icon.svg': 'image/svg+xml',
}


class PageFile:
    """A route of a file. It takes no parameters: FastAPI would read them from the URL.

    Args:
        response: The answer.
    """

    def __init__(self, response: Response) -> None:
        self.response = response

    def __call__(self) -> Response:
        return self.response


def add_page(app: FastAPI) -> None:
    """Add the routes of the page: ``/`` and the files that it loads."""
    folder = files(__package__) / 'page'
    for name, media_type in MEDIA_TYPES.items():
        response = Response(
            (folder / name).read_bytes(),
            media_type=media_type,
            headers={'Cache-Control': 'no-cache'})
        path = '/' if name == 'page.html' else f'/{name}'
        app.add_api_route(
            path,
            PageFile(response),
            methods=['GET', 'HEAD'],
            include_in_schema=False,
            response_class=Response,
            response_model=None)

"""A model behind a web page and a JSON API, for one machine and its users."""
from ..options import ServeOptions
from .server import serve

__all__ = ['ServeOptions', 'serve']

"""A model behind a web page and a JSON API, for one machine and its users."""
from .server import ServeOptions, serve

__all__ = ['ServeOptions', 'serve']

"""HTTP server with a web page and a JSON API for one model."""
from importlib.util import find_spec

from colonnade.common.errors import UserError

from ..options import ServeOptions

for _name in ('fastapi', 'uvicorn', 'python_multipart'):
    if find_spec(_name) is None:
        raise UserError(f"colonnade serve needs {_name}: run pip install '.[serve]' in Colonnade's "
                        'source')

from .server import serve  # noqa: E402

__all__ = ['ServeOptions', 'serve']

"""HTTP server with a web page and a JSON API for one model."""
from importlib.util import find_spec

from colonnade.common.errors import UserError

for _name in ('fastapi', 'uvicorn', 'python_multipart'):
    if find_spec(_name) is None:
        raise UserError(f"colonnade serve needs {_name}: run pip install '.[serve]' in Colonnade's "
                        'source directory')

"""What a model looks at, as pictures."""
from .kinds import picture, pictures, pictures_of
from .layout import as_bytes
from .options import Options

__all__ = ['Options', 'as_bytes', 'picture', 'pictures', 'pictures_of']

"""What a model looks at, as pictures."""
from .figure_options import Options
from .layout import as_bytes
from .methods import picture, pictures, pictures_of

__all__ = ['Options', 'as_bytes', 'picture', 'pictures', 'pictures_of']

"""What a model looks at, as pictures."""
from .figure_options import Options
from .layout import as_bytes
from .methods import available_methods, picture, pictures

__all__ = ['Options', 'as_bytes', 'picture', 'pictures', 'available_methods']

"""A page that shows what a model is trained on, and what looks wrong about it."""
from ..options import BrowseOptions
from .browser import BrowseResult, browse

__all__ = ['BrowseOptions', 'BrowseResult', 'browse']

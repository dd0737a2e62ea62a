"""A page that shows what a model is trained on, and what looks wrong about it."""
from .browser import Browsed, BrowseOptions, browse

__all__ = ['BrowseOptions', 'Browsed', 'browse']

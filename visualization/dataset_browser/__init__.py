"""A page that shows what a model is trained on, and what looks wrong about it."""
from .browsed_data import BrowseOptions
from .browser import Browsed, browse

__all__ = ['BrowseOptions', 'Browsed', 'browse']

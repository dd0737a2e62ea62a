"""Page about a dataset: annotations, model inputs, statistics, suspected issues."""
from ..options import BrowseOptions
from .browser import BrowseResult, browse_dataset

__all__ = ['BrowseOptions', 'BrowseResult', 'browse_dataset']

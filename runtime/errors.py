"""What may be wrong with a folder of an exported model."""
from __future__ import annotations


class ModelError(ValueError):
    """A folder that cannot be used; the message names file, key and value."""

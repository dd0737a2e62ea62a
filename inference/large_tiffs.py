"""TIFF images that are too large for the memory, such as maps of whole cities."""
from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from colonnade.runtime.bit_depth import DECODER_ERRORS
from colonnade.runtime.images import MAX_PIXELS, ImageError

SUFFIXES = ('.tif', '.tiff')
AXES = ('YX', 'YXS', 'SYX')
COLORS = {(1, 1), (2, 3)}  # photometric interpretation and channels of gray values and of RGB
ORIENTATION, UPRIGHT = 274, 1  # tag, and its default


def decode_to_disk(source: Any, max_pixels: int) -> np.ndarray | None:
    """Decode a large TIFF image to a temporary file; only the parts in use take memory.

    The file is in ``TMPDIR``, and is removed with the array.

    Args:
        source: Image.
        max_pixels: Number of pixels above which an image cannot be read otherwise.

    Returns:
        RGB values ``(H, W, 3)``, uint8; None unless ``source`` is the path of an upright TIFF image
        of RGB or gray values of 8 bits, with more than :data:`.MAX_PIXELS` pixels. Also None if it
        cannot be decoded or needs more disk space than there is, but can be read otherwise.

    Raises:
        ImageError: If neither is possible.
    """
    if not isinstance(source, (str, Path)) or Path(source).suffix.lower() not in SUFFIXES:
        return None
    from tifffile import TiffFile  # takes 0.2 s
    try:
        with TiffFile(source) as tiff:
            page = tiff.pages.first
            num_pixels, num_bytes = page.imagewidth * page.imagelength, page.nbytes
            is_upright = page.tags.valueof(ORIENTATION, UPRIGHT) == UPRIGHT
            has_values = (
                page.bitspersample == 8 and page.dtype == np.uint8 and page.axes in AXES
                and (page.photometric, page.samplesperpixel) in COLORS)
    except DECODER_ERRORS:  # reported when it is read otherwise
        return None
    if num_pixels <= MAX_PIXELS or not (is_upright and has_values):
        return None
    folder = tempfile.gettempdir()
    if num_bytes > (free := shutil.disk_usage(folder).free):
        if num_pixels <= max_pixels:
            return None
        raise ImageError(f'{source} needs {num_bytes / 1e9:.0f} GB of disk, but {folder} has only '
                         f'{free / 1e9:.0f} GB: set TMPDIR to a larger disk')
    try:
        with TiffFile(source) as tiff:
            values = tiff.pages.first.asarray(out='memmap')
    except DECODER_ERRORS as error:
        if num_pixels <= max_pixels:  # Pillow may have the decoder, or a better message
            return None
        hint = ' (pip install imagecodecs)' if 'imagecodecs' in str(error) else ''
        raise ImageError(f'{source} cannot be decoded: {error}{hint}') from error
    if values.ndim == 2:
        values = values[..., None]
    elif page.axes.startswith('S'):  # one plane per color
        values = np.moveaxis(values, 0, 2)
    return np.broadcast_to(values, (*values.shape[:2], 3))

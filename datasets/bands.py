"""Loading of images of any number of bands, such as multispectral ones."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine.fileio import get
from mmengine.registry import TRANSFORMS

from colonnade.common.errors import UserError
from colonnade.runtime.bands import Source, read_bands, to_rgb
from colonnade.runtime.images import MAX_PIXELS, read_image
from colonnade.settings.pipeline_steps import get_step_type


@TRANSFORMS.register_module()
class LoadBands(LoadImageFromFile):
    """Load all bands of an image, ``(H, W, N)``, uint8 or float32; see :func:`.read_bands`.

    Args:
        num_bands: Expected number N of bands.
        suffixes: Ends of the names of the files of an image, whose first is in the annotations.
        rgb_channels: Bands that pictures show in red, green and blue.
        backend_args: See :func:`mmengine.fileio.get`.
    """

    def __init__(self,
                 num_bands: int,
                 suffixes: Sequence[str] = (),
                 rgb_channels: Sequence[int] = (0, 1, 2),
                 backend_args: dict | None = None) -> None:
        super().__init__(to_float32=True, backend_args=backend_args)
        if any('/' in suffix or '\\' in suffix for suffix in suffixes):
            raise UserError(f'suffixes must be file name endings, got {list(suffixes)}')
        self.num_bands, self.suffixes = num_bands, tuple(suffixes)
        self.rgb_channels = tuple(rgb_channels)

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Add ``img``, ``img_shape`` and ``ori_shape``."""
        image = self.read(results['img_path'])
        size = image.shape[:2]
        return results | dict(img=image, img_shape=size, ori_shape=size)

    def read(self, source: Source, max_pixels: int = MAX_PIXELS) -> np.ndarray:
        """Read an image, see :func:`.read_bands`.

        Raises:
            ImageError: If it cannot be read, or has another number of bands.
        """
        return read_bands(
            source,
            self.suffixes,
            read=lambda file: get(file, backend_args=self.backend_args),
            num_bands=self.num_bands,
            max_pixels=max_pixels)

    def to_rgb(self, image: np.ndarray) -> np.ndarray:
        """Return an image ``(H, W, N)`` as RGB values of a picture, see :func:`.to_rgb`."""
        return to_rgb(image, self.rgb_channels)

    def __repr__(self) -> str:
        return f'{type(self).__name__}(num_bands={self.num_bands}, suffixes={self.suffixes})'


def measure_bands(images: Iterable[np.ndarray]) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each band over all pixels of images ``(H, W, N)``."""
    count = 0
    shift = total = squares = np.zeros(1)  # shift: for exact squares of large values
    for image in images:
        pixels = image.reshape(-1, image.shape[2]).astype(np.float64)
        if not count:
            shift = pixels.mean(0)
        pixels -= shift
        count += len(pixels)
        total, squares = total + pixels.sum(0), squares + (pixels**2).sum(0)
    mean = total / count
    std = np.sqrt(squares / count - mean**2)
    std[~(std > 0)] = 1  # a constant band
    return (shift + mean).tolist(), std.tolist()


def find_band_loader(steps: Sequence[dict[str, Any]] | None) -> LoadBands | None:
    """Return the loader of a pipeline that begins with ``LoadBands``, else None."""
    if not steps or get_step_type(steps[0]) != 'LoadBands':
        return None
    return LoadBands(**{key: value for key, value in steps[0].items() if key != 'type'})


def read_picture(source: Source, bands: LoadBands | None) -> np.ndarray:
    """Read an image as RGB values, ``(H, W, 3)``, uint8; three of several bands."""
    return read_image(source) if bands is None else bands.to_rgb(bands.read(source))

"""Videos that are written."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import numpy as np

from colonnade.common.atomic_files import replacing
from colonnade.common.errors import FileError

CODEC = 'mp4v'  # MPEG-4 part 2, which OpenCV's wheels can write


def can_be_named(path: Path) -> bool:
    """Whether OpenCV can be told a path; one that is not UTF-8 ends the process."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


class Film:
    """A video file that is written frame by frame.

    Args:
        path: Ends with ``.mp4``.
        size: Height and width of its frames.
        rate: Frames a second.

    Raises:
        OSError: If it cannot be written.
    """

    def __init__(self, path: Path, size: tuple[int, int], rate: float) -> None:
        self.path, self.num_frames = path, 0
        if not can_be_named(path):
            raise FileError(f'OpenCV writes no video whose path is not UTF-8: {path}')
        self.writer = cv2.VideoWriter(
            str(path), cv2.VideoWriter.fourcc(*CODEC), rate, (size[1], size[0]))
        if not self.writer.isOpened():
            raise FileError(f'OpenCV cannot write a video of {size[0]} x {size[1]} pixels')

    def add(self, frame: np.ndarray) -> None:
        """Write a frame, RGB values ``(H, W, 3)``."""
        self.writer.write(np.ascontiguousarray(frame[..., ::-1]))
        self.num_frames += 1

    def check(self) -> None:
        """Raise an OSError if the file lacks frames: OpenCV reports no error of writing."""
        capture = cv2.VideoCapture(str(self.path))
        found = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
        capture.release()
        if found < self.num_frames:
            raise FileError(f'{max(found, 0)} of {self.num_frames} frames of a video were written, '
                            'as where a disk is full')


@contextmanager
def new_film(path: Path, size: tuple[int, int], rate: float) -> Iterator[Film]:
    """A video that takes the place of ``path`` when the block ends without an error.

    Raises:
        OSError: If it cannot be written.
    """
    with replacing(path) as scratch:
        film = Film(scratch, size, rate)
        try:
            yield film
        finally:
            film.writer.release()
        film.check()

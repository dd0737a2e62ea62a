"""Videos: frames in; a video, and a line of results for each frame, out."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.error import FFmpegError, InvalidDataError

from colonnade.common.atomic_files import atomic_write
from colonnade.common.errors import FileError, file_errors
from colonnade.common.prefetching import prefetch_map
from colonnade.runtime.images import ImageError

from .inputs import Input
from .model import WORKERS, Answer, Model
from .outputs import Outputs
from .results import LabelMap

DEFAULT_RATE = 25.  # frames per second of videos that do not declare it
BITS_PER_PIXEL = 4  # of videos that are written
MAX_TICKS = 2**16 - 1  # MPEG-4 divides a second into at most this many


@dataclass(frozen=True)
class Video:
    """A video file.

    Attributes:
        path: Path of the file.
        size: Height and width in pixels, after the rotation that the file asks for.
        rate: Frames per second.
        num_frames: Number of frames according to the header, which may be wrong.
        every: Step between the frames that are taken, starting with the first.
    """
    path: Path
    size: tuple[int, int]
    rate: float
    num_frames: int
    every: int

    def __len__(self) -> int:
        """Return how many frames are taken, if the header is right."""
        return -(-self.num_frames // self.every)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield the frames that are taken: RGB values, ``(H, W, 3)``."""
        with open_container(self.path) as container:
            yield from map(to_pixels, islice(decode_frames(container), 0, None, self.every))


def open_video(path: Path, every: int) -> Video:
    """Return a video of which at least one frame can be read.

    Raises:
        ImageError: If no frame can be read.
    """
    if not path.is_file():
        raise ImageError(f'{path}: there is no such file')
    try:
        with open_container(path) as container:
            frame = to_pixels(next(decode_frames(container)))
            stream = container.streams.video[0]
            rate = float(stream.guessed_rate or DEFAULT_RATE)
            num_frames = stream.frames or round((container.duration or 0) / av.time_base * rate)
    except (OSError, FFmpegError, IndexError, StopIteration) as error:
        raise ImageError(f'{path} is no video that can be read') from error
    return Video(path, frame.shape[:2], rate, max(1, num_frames), every)


@contextmanager
def open_container(path: Path) -> Iterator[InputContainer]:
    """Context manager that opens a video but no file that it names, as playlists do."""
    with path.open('rb') as file, \
            av.open(file, 'r', container_options=dict(protocol_whitelist='none')) as container:
        if container.format.name == 'tty':  # a text, which FFmpeg would draw
            raise InvalidDataError(0, 'a text')
        yield container


def decode_frames(container: InputContainer) -> Iterator[av.VideoFrame]:
    """Yield the frames up to the first place that cannot be read; skip damaged ones."""
    stream = container.streams.video[0]
    stream.thread_type = 'AUTO'
    with suppress(FFmpegError):
        for packet in container.demux(stream):
            with suppress(InvalidDataError):
                yield from packet.decode()


def to_pixels(frame: av.VideoFrame) -> np.ndarray:
    """Return RGB values ``(H, W, 3)``, rotated as the file asks for."""
    pixels = frame.to_ndarray(format='rgb24')
    return np.ascontiguousarray(np.rot90(pixels, frame.rotation // 90))


@contextmanager
def open_writer(path: Path, size: tuple[int, int],
                rate: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Context manager that gives a function for writing a frame, RGB values ``(H, W, 3)``.

    Args:
        path: Path of an MP4 file, which is replaced when the block ends without an error.
        size: Height and width of the frames; the last row or column of odd ones is cut off.
        rate: Frames per second.

    Raises:
        OSError: If the file cannot be written.
    """
    height, width = (side // 2 * 2 for side in size)
    if not height or not width:
        raise FileError(f'a video needs at least 2 x 2 pixels, got {size[0]} x {size[1]}')

    def write(pixels: np.ndarray) -> None:
        cut = np.ascontiguousarray(pixels[:height, :width])
        with file_errors():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(cut, format='rgb24')))

    try:
        with atomic_write(path) as scratch:
            with file_errors():
                file = scratch.open('wb')
            container = av.open(file, 'w', format='mp4')
            try:
                ticks = Fraction(rate).limit_denominator(max(1, int(MAX_TICKS / rate)))
                stream = container.add_stream('mpeg4', ticks, width=width, height=height)
                stream.bit_rate = min(2**30, int(BITS_PER_PIXEL * rate * width * height))
                yield write
                with file_errors():
                    container.mux(stream.encode())
                    container.close()
                    file.close()
            finally:
                for opened in (container, file):
                    with suppress(FFmpegError, OSError):  # closing repeats an error of writing
                        opened.close()
    except FFmpegError as error:
        message = f'FFmpeg cannot write a video of {height} x {width} pixels: {error.strerror}'
        raise FileError(message) from error


def predict_frames(model: Model, item: Input, video: Video, outputs: Outputs, *,
                   report: Callable[[int], None], **options: Any) -> dict[str, Any]:
    """Predict the frames of a video, and write what is found in them.

    Args:
        model: That predicts.
        item: The video's names.
        video: Its frames.
        outputs: What to write: pictures become a video, results a line of JSON for each frame,
            label maps a folder of them.
        report: Called with the number of frames that are done, after each.
        **options: As of :meth:`Model.answers`.

    Returns:
        The record of the video.

    Raises:
        ImageError: If a frame does not pass the test pipeline.
        OSError: If a file cannot be written.
    """
    done, write_picture, lines = 0, None, None
    with ExitStack() as stack:
        if 'pictures' in outputs.kinds:
            path = outputs.folder / 'pictures' / f'{item.stem}.mp4'
            write_picture = stack.enter_context(
                open_writer(path, video.size, video.rate / video.every))
        if 'results' in outputs.kinds:
            path = outputs.folder / 'results' / f'{item.stem}.jsonl'
            scratch = stack.enter_context(atomic_write(path))
            with file_errors():  # which a line that cannot be written raises at once
                lines = stack.enter_context(scratch.open('w', buffering=1, encoding='utf-8'))
        for picture, line in prefetch_map(
                partial(write_frame, item=item, video=video, outputs=outputs),
                enumerate(model.answers(video, **options)),
                workers=WORKERS,
                ahead=WORKERS):
            if write_picture is not None:
                write_picture(picture)
            if lines is not None:
                with file_errors():
                    lines.write(json.dumps(line) + '\n')
            done += 1
            report(done)
    about = dict(frames=done, rate=video.rate, every=video.every)
    return dict(name=item.name, size=list(video.size), video=about, entries=[])


def write_frame(numbered: tuple[int, Answer], *, item: Input, video: Video,
                outputs: Outputs) -> tuple[np.ndarray | None, dict[str, Any]]:
    """Write the label map of a frame.

    Returns:
        Its picture, RGB values, and its line of results.

    Raises:
        ImageError: If the frame does not pass the test pipeline.
        OSError: If a file cannot be written.
    """
    index, answer = numbered
    if answer.error is not None:
        raise answer.error
    assert answer.result is not None and answer.image is not None  # where there is no error
    number, picture = index * video.every, None
    if 'labels' in outputs.kinds and isinstance(answer.result, LabelMap):
        with file_errors():
            outputs.write_labels(answer.result, f'{item.name}/{number:06}')
    if 'pictures' in outputs.kinds:
        picture = np.asarray(outputs.draw(answer.result, answer.image, legend=False))
    entries = outputs.entries(answer.result) if 'results' in outputs.kinds else []
    return picture, dict(frame=number, seconds=round(number / video.rate, 3), entries=entries)

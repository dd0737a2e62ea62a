"""Videos: reading frames, and writing a video and a line of results per frame."""
from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
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
from .model import NUM_WORKERS, Model, Prediction
from .outputs import OutputWriter
from .results import LabelMap

DEFAULT_RATE = 25.  # frames per second, if the video does not declare it
#: encoders of written videos in order of preference, and their options; browsers play H.264
ENCODERS = {'libx264': dict(crf='20', preset='veryfast'), 'h264': {}, 'mpeg4': {}}
PIXELS = 'yuv420p'  # the format that all players support
BITS_PER_PIXEL = 4  # bit rate of written videos, for encoders without options
MAX_TICKS = 2**16 - 1  # per second, in MPEG-4


@dataclass(frozen=True)
class Video:
    """A video file, from which every ``frame_step``-th frame is read."""
    path: Path
    size: tuple[int, int]  # height and width in pixels, after rotation
    rate: float  # frames per second
    num_frames: int  # according to the header, which can be wrong
    frame_step: int

    def __len__(self) -> int:
        """Return the number of frames that are read, if the header is right."""
        return -(-self.num_frames // self.frame_step)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield every ``frame_step``-th frame: RGB values, ``(H, W, 3)``."""
        with open_container(self.path) as container:
            yield from map(to_pixels, islice(decode_frames(container), 0, None, self.frame_step))


def open_video(path: Path, frame_step: int) -> Video:
    """Return a video with at least one readable frame."""
    if not path.is_file():
        raise ImageError(f'{path}: no such file')
    try:
        with open_container(path) as container:
            frame = to_pixels(next(decode_frames(container)))
            stream = container.streams.video[0]
            rate = float(stream.guessed_rate or DEFAULT_RATE)
            num_frames = stream.frames or round((container.duration or 0) / av.time_base * rate)
    except (OSError, FFmpegError, IndexError, StopIteration) as error:
        raise ImageError(f'{path} is not a readable video') from error
    return Video(path, frame.shape[:2], rate, max(1, num_frames), frame_step)


@contextmanager
def open_container(path: Path) -> Iterator[InputContainer]:
    """Context manager that opens a video, but no other file, as playlists would."""
    with path.open('rb') as file, \
            av.open(file, 'r', container_options=dict(protocol_whitelist='none')) as container:
        if container.format.name == 'tty':  # FFmpeg would render a text file.
            raise InvalidDataError(0, 'a text file')
        yield container


def decode_frames(container: InputContainer) -> Iterator[av.VideoFrame]:
    """Yield frames until the file is unreadable; skip damaged ones."""
    stream = container.streams.video[0]
    stream.thread_type = 'AUTO'
    with suppress(FFmpegError):
        for packet in container.demux(stream):
            with suppress(InvalidDataError):
                yield from packet.decode()


def to_pixels(frame: av.VideoFrame) -> np.ndarray:
    """Return RGB values ``(H, W, 3)``, rotated as the file specifies."""
    pixels = frame.to_ndarray(format='rgb24')
    return np.ascontiguousarray(np.rot90(pixels, frame.rotation // 90))


@cache
def find_encoder() -> str:
    """Return the first encoder of :data:`ENCODERS` that works here; some need other hardware."""
    for name in ENCODERS:
        with suppress(FFmpegError, OSError, ValueError):
            context: Any = av.CodecContext.create(name, 'w')
            context.width, context.height, context.pix_fmt = 256, 256, PIXELS
            context.time_base = Fraction(1, 25)
            context.encode()  # opens it
            return name
    raise FileError(f'PyAV has none of the video encoders {", ".join(ENCODERS)}')


@contextmanager
def open_writer(path: Path, size: tuple[int, int],
                rate: float) -> Iterator[Callable[[np.ndarray], None]]:
    """Context manager that returns a function that writes a frame, RGB values ``(H, W, 3)``.

    An existing file is replaced only if the block succeeds. Encoders need even sizes, so the last
    row or column of odd ones is cropped.
    """
    height, width = (side // 2 * 2 for side in size)
    if not height or not width:
        raise FileError(f'a video must have at least 2 x 2 pixels, got {size[0]} x {size[1]}')

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
                encoder = find_encoder()
                stream: Any = container.add_stream(
                    encoder, ticks, width=width, height=height, options=ENCODERS[encoder])
                stream.pix_fmt = PIXELS
                if not ENCODERS[encoder]:
                    stream.bit_rate = min(2**30, int(BITS_PER_PIXEL * rate * width * height))
                yield write
                with file_errors():
                    container.mux(stream.encode())
                    container.close()
                    file.close()
            finally:
                for opened in (container, file):
                    with suppress(FFmpegError, OSError):  # repeats the error of writing
                        opened.close()
    except FFmpegError as error:
        message = f'FFmpeg cannot write a video of {height} x {width} pixels: {error.strerror}'
        raise FileError(message) from error


def predict_frames(model: Model, item: Input, video: Video, writer: OutputWriter, *,
                   report: Callable[[int], None], **options: Any) -> dict[str, Any]:
    """Predict the frames of a video, write the outputs, and return the record of the video.

    Visualizations become a video, results a line of JSON per frame, label maps a folder of images.
    """

    def write(numbered: tuple[int, Prediction]) -> tuple[np.ndarray | None, dict[str, Any]]:
        index, prediction = numbered
        if prediction.error is not None:
            raise prediction.error
        assert prediction.result is not None and prediction.image is not None
        number, drawing = index * video.frame_step, None
        if 'labels' in writer.outputs and isinstance(prediction.result, LabelMap):
            with file_errors():
                writer.write_labels(prediction.result, f'{item.name}/{number:06}')
        if 'visualizations' in writer.outputs:
            drawing = np.asarray(writer.draw(prediction.result, prediction.image, legend=False))
        entries = writer.build_entries(prediction.result) if 'results' in writer.outputs else []
        return drawing, dict(frame=number, seconds=round(number / video.rate, 3), entries=entries)

    done, write_drawing, lines = 0, None, None
    with ExitStack() as stack:
        if 'visualizations' in writer.outputs:
            path = writer.folder / 'visualizations' / f'{item.stem}.mp4'
            write_drawing = stack.enter_context(
                open_writer(path, video.size, video.rate / video.frame_step))
        if 'results' in writer.outputs:
            path = writer.folder / 'results' / f'{item.stem}.jsonl'
            scratch = stack.enter_context(atomic_write(path))
            with file_errors():  # Line buffering raises errors of writing at once.
                lines = stack.enter_context(scratch.open('w', buffering=1, encoding='utf-8'))
        predictions = enumerate(model.iter_predictions(video, **options))
        for drawing, line in prefetch_map(
                write, predictions, workers=NUM_WORKERS, ahead=NUM_WORKERS):
            if write_drawing is not None:
                write_drawing(drawing)
            if lines is not None:
                with file_errors():
                    lines.write(json.dumps(line) + '\n')
            done += 1
            report(done)
    # The names of keys are part of the file format.
    info = dict(frames=done, rate=video.rate, every=video.frame_step)
    return dict(name=item.name, size=list(video.size), video=info, entries=[])

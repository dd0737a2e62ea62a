"""Videos: frames in; a video, and a line of results for each frame, out."""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from colonnade.common.atomic_files import replacing
from colonnade.common.errors import file_errors
from colonnade.common.prefetching import prefetched
from colonnade.runtime.images import ImageError

from .inputs import Input
from .model import WORKERS, Answer, Model
from .outputs import Outputs
from .results import LabelMap
from .video_writer import can_be_named, new_film

DEFAULT_RATE = 25.  # frames a second, of videos that do not say
HEAD = 512  # bytes of a file, of which every kind of video has some that no text has


@dataclass(frozen=True)
class Video:
    """A video file.

    Attributes:
        path: Of the file.
        size: Height and width, turned as the file says.
        rate: Frames a second.
        num_frames: As its header says, which may be wrong.
        every: Of how many frames the first is taken.
    """
    path: Path
    size: tuple[int, int]
    rate: float
    num_frames: int
    every: int

    def __len__(self) -> int:
        """How many frames are taken, if the header is right."""
        return -(-self.num_frames // self.every)

    def __iter__(self) -> Iterator[np.ndarray]:
        """The frames that are taken, RGB values, ``(H, W, 3)``."""
        capture = cv2.VideoCapture(str(self.path))
        try:
            for number in count():
                if not capture.grab():
                    return
                if number % self.every == 0:
                    whole, frame = capture.retrieve()
                    if not whole:
                        return
                    yield np.ascontiguousarray(frame[..., ::-1])
        finally:
            capture.release()


def open_video(path: Path, every: int) -> Video:
    """A video of which at least a frame can be read.

    Raises:
        ImageError: If there is none.
    """
    if not path.is_file():
        raise ImageError(f'{path}: there is no such file')
    if not can_be_named(path):
        raise ImageError(f'{path}: OpenCV opens no video whose path is not UTF-8: rename it')
    if is_text(path):
        raise ImageError(f'{path} is text, such as a list of other files, and no video')
    capture = cv2.VideoCapture(str(path))
    try:
        whole, frame = capture.read()
        if not whole:
            raise ImageError(f'{path} is no video that can be read')
        rate = capture.get(cv2.CAP_PROP_FPS)
        number = capture.get(cv2.CAP_PROP_FRAME_COUNT)
    finally:
        capture.release()
    height, width = frame.shape[:2]
    return Video(path, (height, width), rate if math.isfinite(rate) and rate > 0 else DEFAULT_RATE,
                 max(1, int(number)) if math.isfinite(number) else 1, every)


def is_text(path: Path) -> bool:
    """Whether a file begins as text; of a playlist, FFmpeg would read the files that it names."""
    with path.open('rb') as file:
        head = file.read(HEAD)
    return bool(head) and not any(byte < 9 for byte in head)


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
    done, film, lines = 0, None, None
    with ExitStack() as stack:
        if 'pictures' in outputs.kinds:
            path = outputs.folder / 'pictures' / f'{item.stem}.mp4'
            film = stack.enter_context(new_film(path, video.size, video.rate / video.every))
        if 'results' in outputs.kinds:
            path = outputs.folder / 'results' / f'{item.stem}.jsonl'
            scratch = stack.enter_context(replacing(path))
            with file_errors():  # which a line that cannot be written raises at once
                lines = stack.enter_context(scratch.open('w', buffering=1, encoding='utf-8'))
        for picture, line in prefetched(
                partial(write_frame, item=item, video=video, outputs=outputs),
                enumerate(model.answers(video, **options)),
                workers=WORKERS,
                ahead=WORKERS):
            if film is not None:
                film.add(picture)
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

"""Predict images with an exported model.

    python -m colonnade_runtime FOLDER image.jpg photos --out predictions

Label maps are written as PNG, with class fractions as JSON; panoptic segments as PNG, with their
classes as JSON. Instances are written as JSON, feature maps as numpy arrays. Existing files are not
overwritten.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .images import SUFFIXES, ImageError
from .model import load
from .sanitize import one_line, printable


def parse_args() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog='colonnade_runtime',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='folder of an exported model')
    parser.add_argument(
        'images', type=Path, nargs='+', metavar='IMAGE', help='image file, or folder of images')
    parser.add_argument('--out', type=Path, required=True, help='output folder')
    parser.add_argument(
        '--provider',
        action='append',
        metavar='NAME',
        help='execution provider of onnxruntime, in order of preference (default: the CPU)')
    parser.add_argument('--threads', type=int, help='number of threads (default: one per core)')
    return parser.parse_args()


def find_images(sources: Sequence[Path], out: Path) -> dict[str, Path]:
    """Return images by the base names of their outputs."""
    images: dict[str, Path] = {}
    for source in sources:
        if not source.exists():
            raise FileNotFoundError(f'no such file or folder: {source}')
        paths = [source] if not source.is_dir() else sorted(path for path in source.iterdir()
                                                            if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise ValueError(f'no images in {source}')
        for path in paths:
            if path.stem in images:
                raise ValueError(f'{images[path.stem]} and {path} have the same output name in '
                                 f'{out}')
            images[path.stem] = path
    for output in (out / f'{name}{suffix}' for name in images
                   for suffix in ('.png', '.json', '.npz')):  # yapf: disable
        if output.exists():
            raise FileExistsError(f'{output} already exists: choose another folder')
    return images


def main() -> None:
    """Predict all images, then report those that could not be read."""
    args = parse_args()
    errors = []
    try:
        images = find_images(args.images, args.out)
        model = load(args.folder, providers=args.provider, threads=args.threads)
        args.out.mkdir(parents=True, exist_ok=True)
        for name, path in images.items():
            try:
                result = model.predict(path)
            except ImageError as error:
                errors.append(str(error))
                continue
            files = result.save(args.out / name)
            print(one_line(f'{path}: {result} -> {", ".join(map(str, files))}'), flush=True)
    except (OSError, ValueError) as error:
        sys.exit(f'colonnade_runtime: {printable(error)}')
    if errors:
        sys.exit('\n'.join(f'colonnade_runtime: {one_line(error)}' for error in errors))


if __name__ == '__main__':
    main()

"""Predict images with an exported model.

    python -m colonnade_runtime FOLDER image.jpg photos --out predictions

A label map is written as PNG, with the shares of its classes as JSON. Instances are JSON, and maps
of a backbone are arrays of numpy's. Files that exist are not replaced.
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
    """The command line."""
    parser = argparse.ArgumentParser(
        prog='colonnade_runtime',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('folder', type=Path, help='that colonnade export has written')
    parser.add_argument(
        'images', type=Path, nargs='+', metavar='IMAGE', help='image file, or folder of images')
    parser.add_argument('--out', type=Path, required=True, help='folder to write')
    parser.add_argument(
        '--provider',
        action='append',
        metavar='NAME',
        help="what computes, as onnxruntime names it; the preferred first (the CPU)")
    parser.add_argument('--threads', type=int, help='that compute (as many as there are cores)')
    return parser.parse_args()


def find_images(given: Sequence[Path], out: Path) -> dict[str, Path]:
    """The images by the names of their results.

    Args:
        given: Files and folders.
        out: Where results go.

    Raises:
        OSError: If there is no such file, or results exist already.
        ValueError: If there are no images, or two whose results would have one name.
    """
    found: dict[str, Path] = {}
    for place in given:
        if not place.exists():
            raise FileNotFoundError(f'no file or folder {place}')
        paths = [place] if not place.is_dir() else sorted(path for path in place.iterdir()
                                                          if path.suffix.lower() in SUFFIXES)
        if not paths:
            raise ValueError(f'no images in {place}')
        for path in paths:
            if path.stem in found:
                raise ValueError(f'{found[path.stem]} and {path} would have one name in {out}')
            found[path.stem] = path
    for name in found:
        taken = [out / f'{name}{suffix}' for suffix in ('.png', '.json', '.npz')]
        for path in taken:
            if path.exists():
                raise FileExistsError(f'{path} already exists: choose another folder')
    return found


def main() -> None:
    """Predict each image; what cannot be read is said at the end."""
    args = parse_args()
    faults = []
    try:
        images = find_images(args.images, args.out)
        model = load(args.folder, providers=args.provider, threads=args.threads)
        args.out.mkdir(parents=True, exist_ok=True)
        for name, path in images.items():
            try:
                result = model.predict(path)
            except ImageError as error:
                faults.append(str(error))
                continue
            files = result.save(args.out / name)
            said = f'{path}: {result} -> {", ".join(map(str, files))}'
            print(one_line(said), flush=True)
    except (OSError, ValueError) as error:
        sys.exit(f'colonnade_runtime: {printable(error)}')
    if faults:
        sys.exit('\n'.join(f'colonnade_runtime: {one_line(fault)}' for fault in faults))


if __name__ == '__main__':
    main()

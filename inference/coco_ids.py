"""The ids of images and categories in results: counted, or those of a COCO file."""
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError, file_errors

from .inputs import Input


@dataclass(frozen=True)
class Numbering:
    """The ids of what is predicted.

    Attributes:
        images: Of each image or video, by its name.
        categories: Of each class of the model, in order.
    """
    images: dict[str, int]
    categories: tuple[int, ...]


def counted(inputs: Sequence[Input], classes: Sequence[str], first: int = 1) -> Numbering:
    """Ids that count the inputs from 1 on, and the classes from ``first`` on."""
    return Numbering({
        item.name: number
        for number, item in enumerate(inputs, 1)
    }, tuple(range(first, first + len(classes))))


def numbering_of(annotations: Path, inputs: Sequence[Input], classes: Sequence[str]) -> Numbering:
    """The ids that a COCO file has.

    Args:
        annotations: The file.
        inputs: Each is an image in it: its path ends with the ``file_name``.
        classes: Each is the name of a category in it.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is no such file, or lacks an image or a class.
    """
    images, categories = lists_of(annotations)
    missing = [name for name in classes if name not in categories]
    if missing:
        raise UserError(f'{annotations} has no category {missing[0]!r}, which the model knows; it '
                        f'has {", ".join(map(repr, categories))}')
    owners: dict[int, str] = {}
    for item in inputs:
        parts = item.path.as_posix().split('/')
        ends = ('/'.join(parts[start:]) for start in range(1, len(parts)))  # the longest first
        number = next((images[end] for end in ends if end in images), None)
        if number is None:
            raise UserError(f'{annotations} has no image {item.name}')
        if (other := owners.setdefault(number, item.name)) != item.name:
            raise UserError(f'{other} and {item.name} are both image {number} of {annotations}: '
                            'leave one out')
    ids = {name: number for number, name in owners.items()}
    return Numbering(ids, tuple(categories[name] for name in classes))


@file_errors()
def lists_of(annotations: Path) -> tuple[dict[str, int], dict[str, int]]:
    """The ids of images by their ``file_name``, and of categories by their ``name``.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is not in COCO's form.
    """
    try:
        content: Any = json.loads(annotations.read_bytes())
        return ({
            image['file_name']: image['id']
            for image in content['images']
        }, {
            category['name']: category['id']
            for category in content['categories']
        })
    except (ValueError, RecursionError) as error:
        raise UserError(f'{annotations} is no JSON file: {error}') from error
    except (KeyError, TypeError) as error:
        raise UserError(f"{annotations} is not in COCO's form: it needs images with id and "
                        'file_name, and categories with id and name') from error

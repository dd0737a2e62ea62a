"""Options of figures."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from colonnade.common.errors import UserError
from colonnade.runtime.images import MAX_PIXELS


@dataclass(frozen=True)
class Options:
    """How figures are drawn. An option that is None is chosen by the method.

    Attributes:
        blocks: Blocks of the backbone, counted from 0, negative ones from the last; the last if
            None. For ``class-attention``: blocks of that stage, all if None.
        heads: Heads of attention, counted from 0; all if None.
        point: The token at ``(x, y)``, in pixels of the given image. If None, the class token where
            a backbone has one, else the one in the middle.
        classifier: A classifier's weights for ``class-attention``: file, URL or ``timm://NAME``.
        target: For ``grad-cam``: a class by name; or for detectors a detection by its number, 0 is
            the most certain. If None, the three most certain detections or most frequent classes.
        size: Height and width to resize images to, instead of what the test pipeline does.
        nearest: Show each token as a square; otherwise maps are interpolated bilinearly.
        trust: Run what is pickled in the classifier's file; only if you trust who made it.
    """
    blocks: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    point: tuple[float, float] | None = None
    classifier: str | Path | None = None
    target: str | int | None = None
    size: tuple[int, int] | None = None
    nearest: bool = False
    trust: bool = False

    @classmethod
    def of(cls, options: dict[str, Any]) -> Options:
        """Return checked options.

        Raises:
            ValueError: If there is no such option, or it cannot have this value.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(options.keys() - known):
            raise UserError(f'no option of pictures: {", ".join(unknown)}; there are '
                            f'{", ".join(sorted(known))}')
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in options.items()
        }
        made = cls(**values)
        if made.size is not None:
            height, width = made.size
            if min(made.size) < 1 or height * width > MAX_PIXELS:
                raise UserError('the option size must be a height and a width in pixels, of at '
                                f'most {MAX_PIXELS:,} pixels in all, got {height} x {width}')
        return made

    def set_names(self) -> set[str]:
        """Return the options that differ from their defaults."""
        return {field.name for field in fields(self) if vars(self)[field.name] != field.default}

"""What a door is: one form of data set, how it is recognised, and what opens it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..options import DataOptions
from ..validation.validation_report import Report

Kind = Literal['instances', 'labels']


@dataclass(frozen=True)
class Door:
    """One form of data set.

    Attributes:
        name: What people call the form.
        kind: ``instances`` for detectors, ``labels`` for segmenters.
        layout: The files that it is recognised by, for errors.
        recognises: Whether a file or folder is of this form; looks at few files.
        open: Takes the options of a tool, of which ``data`` has one or two paths. Sets those that
            say where COCO files or label maps are, as if the user had. Returns the folder of a
            conversion if it wrote one. Faults and what is lost go to the report.
    """
    name: str
    kind: Kind
    layout: str
    recognises: Callable[[Path], bool]
    open: Callable[[DataOptions, Report], Path | None]

"""A format of datasets: how it is recognized, and what reads it."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..options import DataOptions
from ..validation.validation_report import Report

Kind = Literal['instances', 'labels']


@dataclass(frozen=True)
class DataFormat:
    """A format of datasets.

    Attributes:
        name: What people call it.
        kind: ``instances`` for detectors, ``labels`` for segmenters.
        layout: The files that it is recognized by, for errors.
        detect: Returns whether a file or folder has it; looks at few files.
        open: Takes the options of a tool, of which ``data`` has one or two paths. Sets those that
            say where COCO files or label maps are, as if the user had. Returns the folder of a
            conversion if it wrote one. Faults and what is lost go to the report.
    """
    name: str
    kind: Kind
    layout: str
    detect: Callable[[Path], bool]
    open: Callable[[DataOptions, Report], Path | None]

"""A harmless malicious checkpoint: unpickling it creates a file."""
from __future__ import annotations

import pickle
from pathlib import Path

import torch
from helpers.layouts_by_hand import original_state


class MaliciousObject:
    """An object that creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker, )


def write_malicious_checkpoint(path: Path, form: str) -> Path:
    """Write a checkpoint with a malicious object; return the file that it would create."""
    marker = path.with_suffix('.made')
    content = dict(state_dict=original_state(), evil=MaliciousObject(marker))
    if form == 'pickle':
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == 'zip')
    return marker

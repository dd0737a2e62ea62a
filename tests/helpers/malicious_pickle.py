"""A harmless malicious checkpoint: reading it without care makes a file."""
from __future__ import annotations

import pickle
from pathlib import Path

import torch
from helpers.layouts_by_hand import original_state


class Evil:
    """Runs code when it is unpickled: here, makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return Path.touch, (self.marker, )


def write_evil(path: Path, form: str) -> Path:
    """A checkpoint with an Evil; returns the file that it would make."""
    marker = path.with_suffix('.made')
    content = dict(state_dict=original_state(), evil=Evil(marker))
    if form == 'pickle':
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=form == 'zip')
    return marker

"""Files of the weights that a training changed, without those of the base model."""
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from colonnade.backbones.lora import BASE as ADAPTED
from colonnade.weights.downloads import fetch
from colonnade.weights.formats import convert_keys
from colonnade.weights.state_dicts import (OMITTED, State, WeightsError, add_prefix, get_omitted,
                                           get_state_dict, strip_prefix)

MIN_SHARED = 0.1  # of a file's bytes that a base model must have


def omit_base(checkpoint: Mapping[str, Any], source: str, base: str, trust: bool) -> dict[str, Any]:
    """Return a checkpoint without the tensors that are equal in ``base``.

    Raises:
        WeightsError: If no tensor is equal.
    """
    state, known = get_state_dict(checkpoint, source), read_base(base, trust)
    omitted = {
        name: known[_get_plain_name(name)]
        for name, value in state.items() if _is_equal(value, known.get(_get_plain_name(name)))
    }
    if not omitted:
        raise WeightsError(f'--base {base}: it shares no identical tensor with {source}, so '
                           'training did not start from it')
    description = dict(names=sorted(omitted), sha256=compute_digest(omitted))
    size = sum(value.nbytes for value in state.values())
    if sum(value.nbytes for value in omitted.values()) < MIN_SHARED * size:
        raise WeightsError(f'--base {base}: it shares less than {MIN_SHARED:.0%} of {source}, so '
                           'training did not start from it, or changed all weights')
    meta = dict(checkpoint.get('meta') or {})
    meta['dataset_meta'] = dict(meta.get('dataset_meta') or {}) | {OMITTED: description}
    kept = {name: value for name, value in state.items() if name not in omitted}
    return dict(meta=meta, state_dict=kept)


def restore_base(checkpoint: Mapping[str, Any], source: str, base: str,
                 trust: bool) -> dict[str, Any]:
    """Return a checkpoint of :func:`omit_base` with the omitted tensors of ``base``.

    Raises:
        WeightsError: If they differ from those that were omitted.
    """
    description, known = get_omitted(checkpoint), read_base(base, trust)
    assert description is not None
    names = [name for name in description['names'] if _get_plain_name(name) in known]
    omitted = {name: known[_get_plain_name(name)] for name in names}
    if compute_digest(omitted) != description.get('sha256'):
        raise WeightsError(f'--base {base} is not the base model of {source}: '
                           f'{len(description["names"])} tensors must have the SHA-256 '
                           f'{description.get("sha256")}')
    meta = dict(checkpoint['meta'])
    meta['dataset_meta'] = {
        key: value
        for key, value in meta['dataset_meta'].items() if key != OMITTED
    }
    return dict(meta=meta, state_dict=omitted | get_state_dict(checkpoint, source))


def read_base(base: str, trust: bool) -> State:
    """Read a base model; tensors of a backbone get the prefix of full models."""
    _, state = convert_keys(get_state_dict(fetch(base, trust=trust), base), base)
    return state if strip_prefix(state, 'backbone.') else add_prefix(state, 'backbone.')


def compute_digest(state: State) -> str:
    """Return the SHA-256 of names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name in sorted(state):
        value = state[name].detach().cpu().contiguous()
        digest.update(f'{name} {value.dtype} {tuple(value.shape)}\n'.encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _get_plain_name(name: str) -> str:
    """Return the name that a tensor has without LoRA."""
    return name.replace(ADAPTED, '.')


def _is_equal(value: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and value.dtype == other.dtype and torch.equal(value, other)

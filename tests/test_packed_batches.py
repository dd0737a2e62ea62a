"""Batches whose small tensors leave the workers of a data loader together."""
from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmdet.structures.bbox import HorizontalBoxes
from mmdet.structures.mask import BitmapMasks
from mmengine.dataset import pseudo_collate
from mmengine.structures import InstanceData
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from colonnade.datasets.packed_batches import MAX_BYTES, PackedBatch, PackingCollate

KILLED = """
import os, signal, sys, time
from functools import partial
import numpy as np
from torch.utils.data import DataLoader
from colonnade.datasets.packed_batches import PackingCollate
from colonnade.engine.runner.signal_handling import start_worker

class Samples:
    def __len__(self):
        return int(sys.argv[3])

    def __getitem__(self, index):
        time.sleep(float(sys.argv[1]))
        return np.zeros((300, 1000), np.uint8)

if __name__ == '__main__':
    batches = iter(DataLoader(Samples(), 4, num_workers=2, collate_fn=PackingCollate(list),
                              worker_init_fn=partial(start_worker, None),
                              multiprocessing_context=sys.argv[2]))
    next(batches) if sys.argv[1] == '0' else time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


class Samples(Dataset):
    """Samples with tensors of many kinds."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> dict[str, Any]:
        whole = torch.arange(24.).reshape(2, 3, 4) + index
        masks = BitmapMasks(np.eye(4, dtype=np.uint8)[None] * index, 4, 4)
        sample = DetDataSample(metainfo=dict(index=index))
        sample.gt_instances = InstanceData(
            bboxes=HorizontalBoxes(whole[0, :1]), labels=torch.tensor([index]), masks=masks)
        return dict(
            inputs=whole.byte(),
            data_samples=sample,
            others=[
                whole.mT, whole[:, ::2],
                whole.half()[0, 0, 0],
                whole.bool(),
                whole.to(torch.complex64), whole[:0],
                whole.bfloat16().expand(5, 2, 3, 4),
                whole.to_sparse(),
                nn.Parameter(whole),
                torch.tensor(index).expand(1), 'text'
            ],
            same=[whole] * 2,
            large=[np.full((2, 200, 200), index, np.uint8)] * 2)  # written once, by reference


def load(num_workers: int, collate: Any) -> list[Any]:
    return list(DataLoader(Samples(), 2, num_workers=num_workers, collate_fn=collate))


def test_batches_stay_the_same() -> None:
    """In the process itself, and from a worker."""
    expected = load(0, pseudo_collate)
    assert len(expected) == 2
    for workers in (0, 1):
        for batch, other in zip(
                load(workers, PackingCollate(pseudo_collate)), expected, strict=True):
            assert type(batch) is dict and batch.keys() == other.keys()
            check_equal(batch['inputs'], other['inputs'])
            for own, theirs in zip(batch['others'], other['others'], strict=True):
                check_equal(own, theirs)
            for own, theirs in zip(batch['data_samples'], other['data_samples'], strict=True):
                assert own.index == theirs.index
                a, b = own.gt_instances, theirs.gt_instances
                assert torch.equal(a.bboxes.tensor, b.bboxes.tensor)
                assert torch.equal(a.labels, b.labels)
                assert (a.masks.masks == b.masks.masks).all()
            assert batch['same'][0][0] is batch['same'][1][0]
            assert batch['large'][0][0] is batch['large'][1][0]
            for own, theirs in zip(batch['large'][0], other['large'][0], strict=True):
                assert (own == theirs).all()


def check_equal(own: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(own, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, Tensor):
            assert (a.dtype, a.shape, a.layout) == (b.dtype, b.shape, b.layout)
            assert torch.equal(a.to_dense(), b.to_dense())
        else:
            assert a == b


def test_small_tensors_are_independent() -> None:
    """Each has its own memory, so that a copy of one does not copy the others."""
    batch = load(1, PackingCollate(pseudo_collate))[0]
    label = batch['data_samples'][0].gt_instances.labels
    assert label.untyped_storage().nbytes() == label.nbytes
    label += 1
    assert batch['data_samples'][1].gt_instances.labels.item() == 1


def test_large_tensors_stay_in_shared_memory() -> None:
    image = torch.ones(3, 200, 200, dtype=torch.uint8)
    assert len(PackedBatch([image]).content) < image.nbytes / 10
    assert len(PackedBatch([image[:, :50, :50]]).content) > 3 * 50 * 50
    for batch in DataLoader([image] * 2, 2, num_workers=1, collate_fn=PackingCollate(list)):
        assert all(map(torch.equal, batch, [image] * 2)) and batch[0].is_shared()


def test_label_maps_take_a_byte_per_pixel() -> None:
    labels = torch.arange(150 * 150).reshape(1, 150, 150) % 256
    assert len(PackedBatch([labels]).content) < labels.nbytes / 7
    others = [labels - 1, labels + 1, labels.int()]
    for batch in DataLoader([labels, *others], 4, num_workers=1, collate_fn=PackingCollate(list)):
        assert [each.is_shared() for each in batch] == [False, True, True, True]
        check_equal(batch, [labels, *others])


def test_batches_without_tensors() -> None:
    assert load(1, PackingCollate(lambda samples: [len(samples), 'a'])) == [[2, 'a'], [1, 'a']]


@pytest.mark.parametrize('count', [1, 2 * MAX_BYTES // 8])
def test_error_of_a_batch_that_cannot_be_sent(count: int) -> None:
    with pytest.raises(Exception, match="local object|Can't pickle"):
        load(1, PackingCollate(lambda samples: [np.full(count, lambda: None)]))


@pytest.mark.slow
@pytest.mark.parametrize(
    'arguments',
    ['0 fork 100', '0.5 fork 100', '0 spawn 100', '0 forkserver 100', '0 forkserver 4'])
def test_workers_of_a_killed_process_exit(arguments: str, tmp_path: Path) -> None:
    """Otherwise they wait forever for a reader, and hold the output open."""
    path = tmp_path / 'killed.py'
    path.write_text(KILLED, encoding='utf-8')
    done = subprocess.run([sys.executable, path, *arguments.split()],
                          capture_output=True,
                          timeout=100)
    assert done.returncode == -signal.SIGKILL

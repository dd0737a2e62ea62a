"""Features that are kept on disk, and the probes that are trained and evaluated on them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers.toy_backbone import Toy
from mmseg.evaluation import IoUMetric
from pycocotools import mask
from torch.multiprocessing import start_processes
from torch.nn import functional as F

from colonnade.evaluation.probing import feature_cache, knn, probe_metrics
from colonnade.evaluation.probing.feature_cache import CacheError, FeatureCache
from colonnade.evaluation.probing.frozen_features import Extractor, Features, compute_features
from colonnade.evaluation.probing.knn import NearestNeighbours, remember
from colonnade.evaluation.probing.linear import train_linear_probe
from colonnade.evaluation.probing.probe_data import Sample, paint, subset
from colonnade.evaluation.probing.probe_metrics import full_resolution, iou_of_classes, mean_iou
from colonnade.evaluation.probing.soft_labels import soft_labels

SMALL = dict(embed_dim=8, depth=2, num_heads=2, patch_size=16)
VOTING = dict(num_neighbours=30, temperature=0.02)
SIZES = ((40, 48), (64, 33), (20, 100))  # height, width


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = []
    for number, size in enumerate(SIZES):
        paths.append(tmp_path / f'{number}.png')
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
        cv2.imwrite(str(paths[-1]), pixels)
    return paths


class Counted(Extractor):
    """Counts how often the backbone runs, and stops after so many images."""
    calls, most = 0, 100

    def __call__(self, content: bytes, name: Path) -> np.ndarray:
        self.calls += 1
        if self.calls > self.most:
            raise KeyboardInterrupt
        return super().__call__(content, name)


def extractor(*, seed: int = 0, out_indices: Sequence[int] = (-1, ), **changes) -> Counted:
    torch.manual_seed(seed)
    settings = dict(size=32, mean=[1., 2., 3.], std=[4., 5., 6.]) | changes
    return Counted(Toy(SMALL, out_indices=out_indices), **settings)


def compute(found: Counted, images: list[Path], folder: Path) -> Features:
    return compute_features(found, images, FeatureCache(folder, found.settings))[0]


def test_features_are_the_maps_of_the_backbone(images: list[Path], tmp_path: Path) -> None:
    found = extractor(out_indices=(0, 1))
    features = compute(found, images, tmp_path / 'cache')
    assert [tuple(each.shape) for each in features] == [(2, 2, 16), (4, 2, 16), (2, 8, 16)]
    pixels = torch.from_numpy(cv2.imread(str(images[0]))).permute(2, 0, 1).flip(0)[None].float()
    pixels = F.interpolate(pixels, size=(32, 32), mode='bicubic', antialias=True).clamp(0, 255)
    image = (pixels - torch.tensor([1., 2., 3.]).view(3, 1, 1)) / \
        torch.tensor([4., 5., 6.]).view(3, 1, 1)
    with torch.no_grad():
        expected = torch.cat(found.backbone(image), dim=1)[0].permute(1, 2, 0)
    assert torch.equal(features[0], expected.half())


def test_features_are_computed_once(images: list[Path], tmp_path: Path) -> None:
    first, second = extractor(), extractor()
    features = compute(first, images, tmp_path / 'cache')
    again = compute(second, images[::-1], tmp_path / 'cache')
    assert (first.calls, second.calls) == (3, 0)
    assert all(map(torch.equal, features, reversed(list(again))))


@pytest.mark.parametrize('changes', [
    dict(seed=1), dict(size=48), dict(mean=[0., 0., 0.]), dict(std=[1., 1., 1.]),
    dict(out_indices=(0, )),
], ids=str)  # yapf: disable
def test_features_of_other_settings_are_computed_anew(changes: dict, images: list[Path],
                                                      tmp_path: Path) -> None:
    first, second = extractor(), extractor(**changes)
    assert first.settings != second.settings
    compute(first, images, tmp_path / 'cache')
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 3


def test_features_of_a_changed_image_are_computed_anew(images: list[Path], tmp_path: Path) -> None:
    compute(extractor(), images, tmp_path / 'cache')
    images[1].write_bytes(images[1].read_bytes() + b'\0')
    second = extractor()
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 1


def test_versions_and_source_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = extractor().settings
    monkeypatch.setattr(torch, '__version__', '0')
    after = extractor().settings
    assert {key for key in before if before[key] != after[key]} == {'torch'}
    assert len(before['source']) == 64


def test_computing_goes_on_where_it_was_stopped(images: list[Path], tmp_path: Path) -> None:
    first, second = extractor(), extractor()
    first.most = 2
    with pytest.raises(KeyboardInterrupt):
        compute(first, images, tmp_path / 'cache')
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 1


def spoil_by_tearing(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def spoil_by_emptying(path: Path, other: Path) -> None:
    path.write_bytes(b'')


def spoil_by_a_bit(path: Path, other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def spoil_by_exchange(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


@pytest.mark.parametrize('spoil',
                         [spoil_by_tearing, spoil_by_emptying, spoil_by_a_bit, spoil_by_exchange])
def test_torn_and_foreign_files_are_not_taken(spoil: Callable, images: list[Path],
                                              tmp_path: Path) -> None:
    features = compute(extractor(), images, tmp_path / 'cache')
    expected = features[0]
    paths = [features.cache.path_of(image) for image in features.images]
    spoil(paths[0], paths[1])
    with pytest.raises(CacheError, match='changed or removed while it was in use'):
        features[0]
    second = extractor()
    assert torch.equal(compute(second, images, tmp_path / 'cache')[0], expected)
    assert second.calls == 1


def test_where_features_cannot_be_kept_is_said(images: list[Path], tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'file').touch()
    with pytest.raises(CacheError, match='cannot be kept in .*file/features/.*--cache names'):
        compute(extractor(), images, tmp_path / 'file')

    def full(self: Path, content: bytes) -> None:
        self.touch()
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(Path, 'write_bytes', full)
        with pytest.raises(CacheError, match='No space left on device'):
            compute(extractor(), images, tmp_path / 'cache')
    assert [path.name for path in (tmp_path / 'cache').rglob('*.*')] == ['settings.json']


def compute_in_process(rank: int, images: list[Path], folder: Path) -> None:
    compute(extractor(), images, folder)


def test_processes_share_a_cache(images: list[Path], tmp_path: Path) -> None:
    start_processes(compute_in_process, (images, tmp_path / 'cache'), nprocs=2, start_method='fork')
    third = extractor()
    compute(third, images, tmp_path / 'cache')
    assert not third.calls
    names = [path.name for path in (tmp_path / 'cache').rglob('*') if path.is_file()]
    assert len(names) == 4 and not any(name.startswith('.') for name in names)


def test_the_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert feature_cache.default_folder() == tmp_path / 'colonnade'
    for unset in ('', 'relative'):
        monkeypatch.setenv('XDG_CACHE_HOME', unset)
        assert feature_cache.default_folder() == Path.home() / '.cache/colonnade'


def test_what_has_no_features_is_said(images: list[Path], tmp_path: Path) -> None:
    images[1].write_bytes(b'no image')
    with pytest.raises(ValueError, match='1.png is no image that can be read'):
        compute(extractor(), images, tmp_path / 'cache')
    large = extractor(std=[1e-6] * 3)
    large.backbone.patch_embed.proj.weight.data.mul_(1e6)
    with pytest.raises(ValueError, match='0.png are not finite in float16'):
        compute(large, images[:1], tmp_path / 'cache')
    with pytest.raises(ValueError, match=r'--size must be at least 16 \(one patch\), got 15'):
        extractor(size=15)


@pytest.mark.parametrize('size', [(32, 48), (31, 50), (3, 2), (40, 40)])
def test_soft_labels_are_shares_of_pixels(size: tuple[int, int]) -> None:
    label_map = np.random.default_rng(0).choice([0, 1, 2, 255], size).astype(np.uint8)
    expected = torch.zeros(4, 4, 3)
    pixels = torch.zeros(4, 4)
    for y in range(size[0]):
        for x in range(size[1]):
            patch = int((y + 0.5) * 4 / size[0]), int((x + 0.5) * 4 / size[1])
            pixels[patch] += 1
            if label_map[y, x] < 255:
                expected[patch][int(label_map[y, x])] += 1
    expected /= pixels.clamp(min=1)[..., None]
    found = soft_labels(label_map, (4, 4), 3)
    torch.testing.assert_close(found.dense().view(4, 4, 3), expected)
    assert found.labelled().tolist() == expected.flatten(0, 1).sum(1).nonzero()[:, 0].tolist()


def toy_problem(num_classes: int = 4, seen: int = 3) -> tuple[list, list[Sample]]:
    """Features that show the labels, among noise; images of other sizes, the last unlabelled."""
    generator = np.random.default_rng(0)
    features, samples = [], []
    for h, w in ((6, 8), (9, 5), (7, 7), (4, 4)):
        patches = generator.integers(0, seen, (h, w))
        shown = F.one_hot(torch.from_numpy(patches), num_classes)
        noise = torch.from_numpy(generator.normal(size=(h, w, 3))) * 0.3
        features.append(torch.cat((shown + 0.1 * noise.mean(), noise), dim=2).half())
        label_map = np.kron(patches, np.ones((16, 16), int)).astype(np.uint8)
        if len(samples) == 3:
            label_map[:] = 255
        label_map[:3] = 255
        samples.append(Sample(Path('none'), lambda label_map=label_map: label_map))
    return features, samples


def targets_of(features: list, samples: list[Sample], num_classes: int) -> list:
    return [soft_labels(sample.label_map(), tuple(each.shape[:2]), num_classes)
            for each, sample in zip(features, samples, strict=True)]  # yapf: disable


@pytest.mark.parametrize('num_classes, seen, steps', [(4, 3, 400), (1, 1, 2)])
def test_probes_solve_a_toy_problem(num_classes: int, seen: int, steps: int) -> None:
    features, samples = toy_problem(num_classes, seen)
    targets = targets_of(features, samples, num_classes)
    probe = train_linear_probe(features, targets, num_classes, steps=steps, seed=0)
    for predict in (probe, remember(features, targets, most=100, seed=0, **VOTING)):
        for x, target in zip(features[:3], targets, strict=False):
            predicted = predict(x.flatten(0, 1).float()).argmax(dim=1)
            assert torch.equal(predicted, target.dense().argmax(dim=1))
        iou = iou_of_classes(predict, features, samples, num_classes)
        assert np.isnan(iou[seen:]).all() and mean_iou(iou) > 80  # resizing blurs the borders


def test_a_linear_probe_is_the_seeds() -> None:
    features, samples = toy_problem()
    targets = targets_of(features, samples, 4)
    one, same = (
        train_linear_probe(features, targets, 4, steps=3, seed=0).linear.weight for _ in range(2))
    assert torch.equal(one, same) and one.abs().min() > 0


def test_without_labels_nothing_is_learnt() -> None:
    features, samples = toy_problem()
    targets = targets_of(features[3:], samples[3:], 4)
    for train in (lambda: train_linear_probe(features[3:], targets, 4, steps=1, seed=0),
                  lambda: remember(features[3:], targets, most=9, seed=0, **VOTING)):
        with pytest.raises(ValueError, match='no pixel of the training images is labelled'):
            train()
    with pytest.raises(ValueError, match='no pixel of the validation images is labelled'):
        iou_of_classes(lambda x: x, features[3:], samples[3:], 7)


@pytest.mark.parametrize('most_values', [2**24, 100])
def test_neighbours_are_those_of_a_slow_search(most_values: int,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, 'MOST_VALUES', most_values)
    generator = torch.Generator().manual_seed(0)
    memory, x = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (40, 17))
    votes = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    found = NearestNeighbours(memory, votes, num_neighbours=7, temperature=0.1)(x)
    for query, vote in zip(x, found, strict=True):
        similarities = [float(query @ m / query.norm() / m.norm()) for m in memory]
        nearest = sorted(range(40), key=lambda i: -similarities[i])[:7]
        weights = np.exp([similarities[i] / 0.1 for i in nearest])
        expected = (weights[:, None] * votes[nearest].numpy()).sum(0) / weights.sum()
        np.testing.assert_allclose(vote, expected)


def test_a_memory_is_drawn_by_the_seed() -> None:
    features, samples = toy_problem()
    targets = targets_of(features, samples, 4)
    small, same, other = (remember(features, targets, most=10, seed=s, **VOTING) for s in (0, 0, 1))
    assert len(small.memory) == small.num_neighbours == 10
    assert torch.equal(small.memory, same.memory) and not torch.equal(small.memory, other.memory)
    assert len(remember(features, targets, most=10**6, seed=0, **VOTING).memory) == 48 + 45 + 49
    torch.testing.assert_close(small.votes.sum(1), torch.ones(10))


def test_miou_is_mmsegs() -> None:
    generator = torch.Generator().manual_seed(0)
    metric = IoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = dict(classes=tuple('abcde'))
    features, samples = [], []
    for h, w in ((3, 4), (5, 2)):
        features.append(torch.randn(h, w, 5, generator=generator).half())
        features[-1][..., 4] = -100  # never predicted, and in no label map
        label_map = torch.randint(0, 4, (7 * h, 9 * w), generator=generator)
        label_map[0] = 255
        samples.append(Sample(Path('none'), lambda found=label_map: found.numpy().astype(np.uint8)))
        scores = features[-1].float().permute(2, 0, 1)[None]
        predicted = F.interpolate(scores, size=label_map.shape, mode='bilinear')[0].argmax(0)
        metric.process({},
                       [dict(pred_sem_seg=dict(data=predicted), gt_sem_seg=dict(data=label_map))])
    iou = iou_of_classes(lambda x: x, features, samples, 5)
    assert np.isnan(iou).tolist() == [False] * 4 + [True]
    assert round(mean_iou(iou), 2) == metric.compute_metrics(metric.results)['mIoU']


@pytest.mark.parametrize('most_scores', [2**25, 400, 1])
def test_classes_are_compared_in_parts(most_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_metrics, 'MOST_SCORES', most_scores)
    scores = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(scores.permute(2, 0, 1)[None], size=(11, 13), mode='bilinear')
    assert torch.equal(full_resolution(scores, (11, 13)), expected[0].argmax(0))


def test_instances_are_painted() -> None:
    run_lengths = dict(size=[6, 8], counts=[0, 6, 42])  # the first column
    instances = [
        dict(bbox=[0, 0, 4, 4], bbox_label=1, ignore_flag=0, mask=[[1, 1, 4, 1, 4, 4, 1, 4]]),
        dict(bbox=[0, 0, 8, 6], bbox_label=0, ignore_flag=0, mask=[[0, 0, 8, 0, 8, 5, 0, 5]]),
        dict(bbox=[0, 0, 1, 6], bbox_label=0, ignore_flag=1, mask=run_lengths),
        dict(bbox=[6.2, 4.6, 9., 7.], bbox_label=2, ignore_flag=0, mask=[[1, 1]]),
    ]
    label_map = paint(dict(height=6, width=8, instances=instances), masks=True)
    expected = np.zeros((6, 8), np.uint8)
    expected[:, 0] = 255
    expected[:5] = 1
    expected[1:4, 1:4] = 2
    expected[5:, 6:] = 3
    assert (label_map == expected).all()
    compressed = mask.frPyObjects(run_lengths, 6, 8)
    instances[2]['mask'] = dict(compressed, counts=compressed['counts'].decode())  # as in JSON
    assert (paint(dict(height=6, width=8, instances=instances), masks=True) == expected).all()
    boxes = paint(dict(height=6, width=8, instances=instances), masks=False)
    assert (boxes[:4, :4] == 2).all() and (boxes[4:, :6] == 1).all() and (boxes[5:, 6:] == 3).all()
    assert not paint(dict(height=6, width=8, instances=[]), masks=True).any()


def test_a_subset_is_drawn_by_the_seed() -> None:
    assert subset('abcdef', 6, 0) == list('abcdef')
    drawn = subset(range(100), 10, 0)
    assert len(drawn) == 10 and drawn == sorted(drawn) == subset(range(100), 10, 0)
    assert drawn != subset(range(100), 10, 1)

"""Cached features, and probes that are trained and evaluated on them."""
from __future__ import annotations

from collections.abc import Sequence
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

from colonnade.evaluation.probing import probes
from colonnade.evaluation.probing.feature_cache import CacheError, FeatureCache, get_default_cache
from colonnade.evaluation.probing.frozen_features import Extractor, Features, compute_features
from colonnade.evaluation.probing.probe_data import (Sample, compute_soft_labels, draw_subset,
                                                     paint_instances)
from colonnade.evaluation.probing.probes import (NearestNeighbors, build_neighbors,
                                                 compute_class_ious, train_linear_probe,
                                                 upsample_classes)
from colonnade.evaluation.probing.ranking import compute_miou

SMALL = dict(embed_dim=8, depth=2, num_heads=2, patch_size=16)
VOTING = dict(num_neighbors=30, temperature=0.02)
SIZES = ((40, 48), (64, 33), (20, 100))  # height, width


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = []
    for number, size in enumerate(SIZES):
        paths.append(tmp_path / f'{number}.png')
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), np.uint8)
        cv2.imwrite(str(paths[-1]), pixels)
    return paths


class CountingExtractor(Extractor):
    """Extractor that counts calls, and stops after ``max_calls``."""
    calls, max_calls = 0, 100

    def __call__(self, content: bytes, name: Path) -> np.ndarray:
        self.calls += 1
        if self.calls > self.max_calls:
            raise KeyboardInterrupt
        return super().__call__(content, name)


def build_extractor(*,
                    seed: int = 0,
                    out_indices: Sequence[int] = (-1, ),
                    **changes) -> CountingExtractor:
    torch.manual_seed(seed)
    settings = dict(size=32, mean=[1., 2., 3.], std=[4., 5., 6.]) | changes
    return CountingExtractor(Toy(SMALL, out_indices=out_indices), **settings)


def compute(extractor: CountingExtractor, images: list[Path], folder: Path) -> Features:
    return compute_features(extractor, images, FeatureCache(folder, extractor.settings))[0]


def test_features_match_feature_maps(images: list[Path], tmp_path: Path) -> None:
    found = build_extractor(out_indices=(0, 1))
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
    first, second = build_extractor(), build_extractor()
    features = compute(first, images, tmp_path / 'cache')
    again = compute(second, images[::-1], tmp_path / 'cache')
    assert (first.calls, second.calls) == (3, 0)
    assert all(map(torch.equal, features, reversed(list(again))))


@pytest.mark.parametrize('changes', [
    dict(seed=1), dict(size=48), dict(mean=[0., 0., 0.]), dict(std=[1., 1., 1.]),
    dict(out_indices=(0, )),
], ids=str)  # yapf: disable
def test_other_settings_recompute_features(changes: dict, images: list[Path],
                                           tmp_path: Path) -> None:
    first, second = build_extractor(), build_extractor(**changes)
    assert first.settings != second.settings
    compute(first, images, tmp_path / 'cache')
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 3


def test_changed_image_recomputes_features(images: list[Path], tmp_path: Path) -> None:
    compute(build_extractor(), images, tmp_path / 'cache')
    images[1].write_bytes(images[1].read_bytes() + b'\0')
    second = build_extractor()
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 1


def test_cache_key_contains_versions_and_source(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_extractor().settings
    monkeypatch.setattr(torch, '__version__', '0')
    after = build_extractor().settings
    assert {key for key in before if before[key] != after[key]} == {'torch'}
    assert len(before['source']) == 64


def test_resume_computing_features(images: list[Path], tmp_path: Path) -> None:
    first, second = build_extractor(), build_extractor()
    first.max_calls = 2
    with pytest.raises(KeyboardInterrupt):
        compute(first, images, tmp_path / 'cache')
    compute(second, images, tmp_path / 'cache')
    assert second.calls == 1


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:]


@pytest.mark.parametrize('damage', ['truncate', 'empty', 'flip', 'exchange'])
def test_damaged_files_are_ignored(damage: str, images: list[Path], tmp_path: Path) -> None:
    features = compute(build_extractor(), images, tmp_path / 'cache')
    expected = features[0]
    paths = [features.cache.get_path(image) for image in features.images]
    content, other = (path.read_bytes() for path in paths[:2])
    damaged = dict(truncate=content[:-5], empty=b'', flip=flip_bit(content), exchange=other)
    paths[0].write_bytes(damaged[damage])
    with pytest.raises(CacheError, match='modified or removed while it was in use'):
        features[0]
    second = build_extractor()
    assert torch.equal(compute(second, images, tmp_path / 'cache')[0], expected)
    assert second.calls == 1


def test_report_unwritable_cache(images: list[Path], tmp_path: Path,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'file').touch()
    with pytest.raises(CacheError, match='cannot write features to .*file/features/.*--no-cache'):
        compute(build_extractor(), images, tmp_path / 'file')

    def full(self: Path, content: bytes) -> None:
        self.touch()
        raise OSError(28, 'No space left on device')

    with monkeypatch.context() as patch:
        patch.setattr(Path, 'write_bytes', full)
        with pytest.raises(CacheError, match='No space left on device'):
            compute(build_extractor(), images, tmp_path / 'cache')
    assert [path.name for path in (tmp_path / 'cache').rglob('*.*')] == ['settings.json']


def compute_in_process(rank: int, images: list[Path], folder: Path) -> None:
    compute(build_extractor(), images, folder)


def test_processes_share_cache(images: list[Path], tmp_path: Path) -> None:
    start_processes(compute_in_process, (images, tmp_path / 'cache'), nprocs=2, start_method='fork')
    third = build_extractor()
    compute(third, images, tmp_path / 'cache')
    assert not third.calls
    names = [path.name for path in (tmp_path / 'cache').rglob('*') if path.is_file()]
    assert len(names) == 4 and not any(name.startswith('.') for name in names)


def test_default_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    assert get_default_cache() == tmp_path / 'colonnade'
    for unset in ('', 'relative'):
        monkeypatch.setenv('XDG_CACHE_HOME', unset)
        assert get_default_cache() == Path.home() / '.cache/colonnade'


def test_reject_invalid_images_and_sizes(images: list[Path], tmp_path: Path) -> None:
    images[1].write_bytes(b'no image')
    with pytest.raises(ValueError, match='1.png is not a readable image'):
        compute(build_extractor(), images, tmp_path / 'cache')
    large = build_extractor(std=[1e-6] * 3)
    large.backbone.patch_embed.proj.weight.data.mul_(1e6)
    with pytest.raises(ValueError, match='0.png contain NaN or Inf in float16'):
        compute(large, images[:1], tmp_path / 'cache')
    with pytest.raises(ValueError, match=r'--size must be at least 16 \(one patch\), got 15'):
        build_extractor(size=15)


@pytest.mark.parametrize('size', [(32, 48), (31, 50), (3, 2), (40, 40)])
def test_soft_labels_match_pixel_counts(size: tuple[int, int]) -> None:
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
    found = compute_soft_labels(label_map, (4, 4), 3)
    torch.testing.assert_close(found.to_dense().view(4, 4, 3), expected)
    assert found.find_labeled().tolist() == expected.flatten(0, 1).sum(1).nonzero()[:, 0].tolist()


def build_toy_problem(num_classes: int = 4, seen: int = 3) -> tuple[list, list[Sample]]:
    """Return noisy features that contain the labels, of four images; the last is unlabeled."""
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


def build_targets(features: list, samples: list[Sample], num_classes: int) -> list:
    return [compute_soft_labels(sample.label_map(), tuple(each.shape[:2]), num_classes)
            for each, sample in zip(features, samples, strict=True)]  # yapf: disable


@pytest.mark.parametrize('num_classes, seen, steps', [(4, 3, 400), (1, 1, 2)])
def test_probes_solve_toy_problem(num_classes: int, seen: int, steps: int) -> None:
    features, samples = build_toy_problem(num_classes, seen)
    targets = build_targets(features, samples, num_classes)
    probe = train_linear_probe(features, targets, num_classes, steps=steps, seed=0)
    for predict in (probe, build_neighbors(features, targets, max_patches=100, seed=0, **VOTING)):
        for x, target in zip(features[:3], targets, strict=False):
            predicted = predict(x.flatten(0, 1).float()).argmax(dim=1)
            assert torch.equal(predicted, target.to_dense().argmax(dim=1))
        iou = compute_class_ious(predict, features, samples, num_classes)
        assert np.isnan(iou[seen:]).all() and compute_miou(iou) > 80  # resizing blurs the borders


def test_linear_probe_is_deterministic() -> None:
    features, samples = build_toy_problem()
    targets = build_targets(features, samples, 4)
    one, same = (
        train_linear_probe(features, targets, 4, steps=3, seed=0).linear.weight for _ in range(2))
    assert torch.equal(one, same) and one.abs().min() > 0


def test_reject_unlabeled_images() -> None:
    features, samples = build_toy_problem()
    targets = build_targets(features[3:], samples[3:], 4)
    for train in (lambda: train_linear_probe(features[3:], targets, 4, steps=1, seed=0),
                  lambda: build_neighbors(features[3:], targets, max_patches=9, seed=0, **VOTING)):
        with pytest.raises(ValueError, match='no pixel of the training images is labeled'):
            train()
    with pytest.raises(ValueError, match='no pixel of the validation images is labeled'):
        compute_class_ious(lambda x: x, features[3:], samples[3:], 7)


@pytest.mark.parametrize('max_values', [2**24, 100])
def test_neighbors_match_naive_search(max_values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, 'MAX_SIMILARITIES', max_values)
    generator = torch.Generator().manual_seed(0)
    memory, x = (torch.randn(n, 5, generator=generator, dtype=torch.float64) for n in (40, 17))
    votes = torch.rand(40, 3, generator=generator, dtype=torch.float64)
    found = NearestNeighbors(memory, votes, num_neighbors=7, temperature=0.1)(x)
    for query, vote in zip(x, found, strict=True):
        similarities = [float(query @ m / query.norm() / m.norm()) for m in memory]
        nearest = sorted(range(40), key=lambda i: -similarities[i])[:7]
        weights = np.exp([similarities[i] / 0.1 for i in nearest])
        expected = (weights[:, None] * votes[nearest].numpy()).sum(0) / weights.sum()
        np.testing.assert_allclose(vote, expected)


def test_knn_memory_is_deterministic() -> None:
    features, samples = build_toy_problem()
    targets = build_targets(features, samples, 4)
    small, same, other = (
        build_neighbors(features, targets, max_patches=10, seed=s, **VOTING) for s in (0, 0, 1))
    assert len(small.memory) == small.num_neighbors == 10
    assert torch.equal(small.memory, same.memory) and not torch.equal(small.memory, other.memory)
    assert len(build_neighbors(features, targets, max_patches=10**6, seed=0,
                               **VOTING).memory) == 48 + 45 + 49
    torch.testing.assert_close(small.votes.sum(1), torch.ones(10))


def test_miou_matches_mmseg() -> None:
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
    iou = compute_class_ious(lambda x: x, features, samples, 5)
    assert np.isnan(iou).tolist() == [False] * 4 + [True]
    assert round(compute_miou(iou), 2) == metric.compute_metrics(metric.results)['mIoU']


@pytest.mark.parametrize('max_scores', [2**25, 400, 1])
def test_upsample_classes_in_chunks(max_scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, 'MAX_SCORES', max_scores)
    scores = torch.randn(3, 4, 7, generator=torch.Generator().manual_seed(0))
    expected = F.interpolate(scores.permute(2, 0, 1)[None], size=(11, 13), mode='bilinear')
    assert torch.equal(upsample_classes(scores, (11, 13)), expected[0].argmax(0))


def test_paint_instances() -> None:
    run_lengths = dict(size=[6, 8], counts=[0, 6, 42])  # the first column
    instances = [
        dict(bbox=[0, 0, 4, 4], bbox_label=1, ignore_flag=0, mask=[[1, 1, 4, 1, 4, 4, 1, 4]]),
        dict(bbox=[0, 0, 8, 6], bbox_label=0, ignore_flag=0, mask=[[0, 0, 8, 0, 8, 5, 0, 5]]),
        dict(bbox=[0, 0, 1, 6], bbox_label=0, ignore_flag=1, mask=run_lengths),
        dict(bbox=[6.2, 4.6, 9., 7.], bbox_label=2, ignore_flag=0, mask=[[1, 1]]),
    ]
    label_map = paint_instances(dict(height=6, width=8, instances=instances), masks=True)
    expected = np.zeros((6, 8), np.uint8)
    expected[:, 0] = 255
    expected[:5] = 1
    expected[1:4, 1:4] = 2
    expected[5:, 6:] = 3
    assert (label_map == expected).all()
    compressed = mask.frPyObjects(run_lengths, 6, 8)
    instances[2]['mask'] = dict(compressed, counts=compressed['counts'].decode())  # JSON form
    assert (paint_instances(dict(height=6, width=8, instances=instances),
                            masks=True) == expected).all()
    boxes = paint_instances(dict(height=6, width=8, instances=instances), masks=False)
    assert (boxes[:4, :4] == 2).all() and (boxes[4:, :6] == 1).all() and (boxes[5:, 6:] == 3).all()
    assert not paint_instances(dict(height=6, width=8, instances=[]), masks=True).any()


def test_draw_subset() -> None:
    assert draw_subset('abcdef', 6, 0) == list('abcdef')
    drawn = draw_subset(range(100), 10, 0)
    assert len(drawn) == 10 and drawn == sorted(drawn) == draw_subset(range(100), 10, 0)
    assert drawn != draw_subset(range(100), 10, 1)

"""Train on a few labeled drawings, alone and with the other drawings as unlabeled images.

    python docs/study_unlabeled.py [FOLDER] [--labeled 20] [--iterations 800]

Prints the metric of a segmenter and of a detector for both.
"""
from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

METRICS = dict(sem_fpn='mIoU', mask_rcnn='coco/segm_mAP')
NUM_IMAGES = 400


def split(shapes: Path, folder: Path, num_labeled: int) -> None:
    """Copy the first training images with their labels, and the others without."""
    content = json.loads((shapes / 'coco/annotations/instances_train2017.json').read_text())
    kept, others = content['images'][:num_labeled], content['images'][num_labeled:]
    ids = {image['id'] for image in kept}
    content['images'] = kept
    content['annotations'] = [each for each in content['annotations'] if each['image_id'] in ids]
    for name in ('labeled', 'unlabeled', 'masks'):
        (folder / name).mkdir(parents=True)
    for name, images in (('labeled', kept), ('unlabeled', others)):
        for image in images:
            shutil.copy(shapes / 'coco/train2017' / image['file_name'], folder / name)
    (folder / 'train.json').write_text(json.dumps(content))
    images, masks = (sorted((shapes / 'ade' / part / 'training').iterdir())
                     for part in ('images', 'annotations'))  # yapf: disable
    for image, mask in list(zip(images, masks, strict=True))[:num_labeled]:
        shutil.copy(image, folder / 'masks' / image.name)
        shutil.copy(mask, folder / 'masks' / mask.name)


def measure(head: str, folder: Path, shapes: Path, iterations: int, unlabeled: bool) -> float:
    """Train and evaluate a model, and return its metric."""
    config = folder / f'{head}{"_unlabeled" * unlabeled}.py'
    if head == 'mask_rcnn':
        data = ['--coco', folder / 'train.json',
                shapes / 'coco/annotations/instances_val2017.json',
                '--images', folder / 'labeled', shapes / 'coco/val2017']  # yapf: disable
    else:
        data = ['--masks', folder / 'masks', shapes / 'ade/annotations/validation', '--images',
                folder / 'masks', shapes / 'ade/images/validation', '--classes', 'background',
                'disc', 'square', 'triangle', '--label-zero', 'ignore',
                '--suffixes', '.jpg', '.png']  # yapf: disable
    run('create-config', f'{head}/xcit_nano_12_p16_slim_shapes', *data, '--out', config,
        '--allow-external-files', *['--unlabeled', folder / 'unlabeled'] * unlabeled)
    run('train', config, '--work-dir', config.with_suffix(''), '--allow-external-files',
        '--cfg-options', f'train_cfg.max_iters={iterations}', 'train_cfg.val_interval=9999',
        f'param_scheduler.1.end={iterations}', f'default_hooks.checkpoint.interval={iterations}',
        'randomness.seed=0')
    metrics = config.with_suffix('.json')
    run('test', config,
        config.with_suffix('') / f'iter_{iterations}.pth', '--out', metrics,
        '--allow-external-files')
    return json.loads(metrics.read_text())['metrics'][METRICS[head]]


def run(*arguments: object) -> None:
    """Run a command of Colonnade, whose output goes to standard error."""
    subprocess.run([sys.executable, '-m', 'colonnade', *map(str, arguments)], check=True,
                   stdout=2)  # the file descriptor of standard error


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', nargs='?', type=Path, default=Path('work_dirs/study_unlabeled'))
    parser.add_argument('--labeled', type=int, default=NUM_IMAGES // 20)
    parser.add_argument('--iterations', type=int, default=800)
    parser.add_argument('--heads', nargs='+', choices=METRICS, default=list(METRICS))
    options = parser.parse_args()
    drawn = options.folder / 'shapes'
    run('make-shapes', drawn, '--num-train', NUM_IMAGES, '--num-val', 100)
    split(drawn, options.folder, options.labeled)
    for name in options.heads:
        for with_unlabeled in (False, True):
            value = measure(name, options.folder, drawn, options.iterations, with_unlabeled)
            print(
                f'{name} {"with" if with_unlabeled else "without"} unlabeled images: '
                f'{METRICS[name]} {value:.3f}',
                flush=True)

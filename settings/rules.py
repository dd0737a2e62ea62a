"""Every rule on configs and data: how severe a breach is, what it means and where it is explained.

:class:`~.findings.Finding` takes no other rule, and ``tests/test_rules.py`` asks that each is used.
"""
from __future__ import annotations

from typing import Literal, NamedTuple

#: an ``'error'`` ends a training before it starts, and no config is written for such data; a
#: ``'warning'`` is logged; a ``'note'`` is a reason to look, or says what was not checked
Severity = Literal['error', 'warning', 'note']
#: what training does with data: ``loading`` of the data set fails; a ``sample`` fails; it goes on
#: with other data than meant (``meaning``); it goes on as it should (``none``)
Effect = Literal['loading', 'sample', 'meaning', 'none']
EFFECTS: tuple[Effect, ...] = ('loading', 'sample', 'meaning', 'none')
STOPPING: tuple[Effect, ...] = ('loading', 'sample')
SEVERITIES: tuple[Severity, ...] = ('error', 'warning', 'note')

CONFIGS, DATA = 'configs.md#check-a-config', 'data.md#check-the-data'
CONVERSIONS, BROWSER = 'data.md#what-is-checked', 'browse.md#what-is-suspected'


class Rule(NamedTuple):
    """A rule that configs or data can break.

    Attributes:
        severity: Severity of each breach.
        title: Noun phrase for all breaches, in lower case.
        page: Page of the docs and the section in it.
        fix: Imperative that fits each breach; empty if each finding has its own.
        effect: What training does with such data, unless a finding says otherwise.
        meaning: When something counts as a breach, and what it may mean; for pages.
    """
    severity: Severity
    title: str
    page: str
    fix: str = ''
    effect: Effect = 'none'
    meaning: str = ''


RULES: dict[str, Rule] = {
    # settings
    'arch': Rule('error', 'architectures that a trunk does not have', CONFIGS),
    'batch-size': Rule('error', 'batches that are too small to be normalised', CONFIGS),
    'block-index': Rule('error', 'blocks that a trunk does not have', CONFIGS),
    'channel-order': Rule(
        'warning', 'images in another order of channels than the weights need', CONFIGS),
    'class-file': Rule('error', 'files of classes that are not there', CONFIGS),
    'class-names': Rule(
        'error', 'classes that annotations do not have, or have in another order', CONFIGS),
    'class-count': Rule('error', 'heads of another number of classes than their data', CONFIGS),
    'config-section': Rule('error', 'sections of a config that have no settings', CONFIGS),
    'data-root': Rule('error', 'folders of data that cannot be used', CONFIGS),
    'ignored-label': Rule('warning', 'labels that one part ignores and another learns', CONFIGS),
    'late-change': Rule(
        'warning', 'changes of the learning rate that never come, or not to their end', CONFIGS),
    'late-checkpoint': Rule(
        'warning', 'checkpoints that are never saved, or at the end alone', CONFIGS),
    'late-evaluation': Rule('warning', 'evaluations that never come, or at the end alone', CONFIGS),
    'level-count': Rule('error', 'heads or necks of another number of maps than they get', CONFIGS),
    'loading-masks': Rule('error', 'masks that a head learns from and no step loads', CONFIGS),
    'loop-parts': Rule('error', 'parts of a loop of which others are missing', CONFIGS),
    'meta-keys': Rule('error', 'keys that metrics need and samples lack', CONFIGS),
    'metric-file': Rule('warning', 'metrics that read another file than their data set', CONFIGS),
    'metric-masks': Rule('error', 'metrics of masks of a model that predicts none', CONFIGS),
    'metric-task': Rule('error', 'metrics of another task than their data set', CONFIGS),
    'misnamed-classes': Rule('error', 'classes under a name that nothing reads', CONFIGS),
    'missing-step': Rule('error', 'steps without which a pipeline breaks', CONFIGS),
    'model-build': Rule('error', 'models that cannot be built', CONFIGS),
    'normalisation': Rule(
        'warning', 'images that are normalised otherwise than the weights need', CONFIGS),
    'not-checked': Rule('note', 'what could not be checked', CONFIGS),
    'number-range': Rule('error', 'numbers that are too small or too large', CONFIGS),
    'palette': Rule('error', 'palettes of another number of colours than classes', CONFIGS),
    'parameter-key': Rule('warning', 'keys of learning rates that match no parameter', CONFIGS),
    'pickle': Rule('error', 'annotations whose reading runs code', 'data.md#files-of-strangers'),
    'prefix-tokens': Rule('error', 'tokens of no place that a pyramid would get', CONFIGS),
    'setting-type': Rule('error', 'settings of the wrong kind', CONFIGS),
    'step-build': Rule('error', 'steps of a pipeline that cannot be built', CONFIGS),
    'training-length': Rule('error', 'trainings without a length, or with two', CONFIGS),
    'training-step': Rule('error', 'models that fail in a step of training', CONFIGS),
    'unknown-option': Rule('error', 'options that no setting is named by', CONFIGS),
    'unknown-setting': Rule('error', 'settings that nothing reads', CONFIGS),
    'unknown-type': Rule('error', 'types that nothing registers', CONFIGS),
    'unread-section': Rule('warning', 'sections that nothing reads', CONFIGS),
    'weights-arch': Rule('error', 'weights of another architecture than the trunk', CONFIGS),
    'weights-file': Rule('error', 'weights that are not there, or do not fit', CONFIGS),
    'width': Rule('error', 'widths or strides that parts of a model do not agree on', CONFIGS),
    'window': Rule('error', 'windows of tests that leave gaps', CONFIGS),
    'work-dir': Rule('error', 'work dirs that cannot be written', CONFIGS),
    'zero-label': Rule('error', 'steps and data sets that disagree on reduce_zero_label', CONFIGS),
    'zero-labels': Rule('warning', 'data sets that disagree on reduce_zero_label', CONFIGS),
    # files and annotations
    'unreadable-annotations': Rule(
        'error', 'annotation files that cannot be read', DATA,
        "write the file again, in COCO's form", 'loading'),
    'incomplete-entry': Rule(
        'error', 'entries without a key that is needed', DATA, 'add the key', 'loading'),
    'wrong-value': Rule(
        'error', 'entries with a value that cannot be used', DATA, 'correct the value', 'loading'),
    'no-iscrowd': Rule(
        'error', 'annotations without iscrowd', DATA, 'add "iscrowd": 0, which pycocotools needs'),
    'repeated-annotation-id': Rule(
        'error', 'annotation ids that are there twice', DATA, 'number annotations anew, from 1',
        'loading'),
    'repeated-image-id': Rule(
        'error', 'image ids that are there twice', DATA,
        'number images anew: of two with one id, one is lost', 'meaning'),
    'repeated-category': Rule(
        'error', 'categories that are there twice', DATA, 'merge or rename them', 'loading'),
    'repeated-file': Rule(
        'note', 'image files that are there twice', DATA, 'merge their annotations into one image'),
    'unknown-image': Rule(
        'error', 'annotations of images that are not in the file', DATA,
        'add the image or delete the annotation: it is not trained on', 'meaning'),
    'unknown-category': Rule(
        'error', 'annotations of categories that are not in the file', DATA,
        'add the category or delete the annotation: it is not trained on', 'meaning'),
    'id-0': Rule(
        'error', 'annotations of id 0', DATA,
        'number annotations from 1: evaluation takes 0 for "not matched"', 'meaning'),
    'no-segmentation': Rule(
        'error', 'annotations without a segmentation', DATA,
        'add it, or train boxes alone (colonnade new_config --boxes)', 'sample'),
    'wrong-segmentation': Rule(
        'error', 'segmentations that are malformed', DATA, 'correct or delete the annotation',
        'sample'),
    'empty-box': Rule(
        'note', 'boxes without area', DATA, 'correct the box, or leave it: it is not trained on'),
    'box-outside': Rule(
        'note', 'boxes outside their image', DATA,
        'correct the box, or leave it: it is not trained on'),
    'box-beyond': Rule(
        'note', 'boxes that reach out of their image', DATA,
        'look whether the image was turned or cut; else leave it',
        meaning='By more than one pixel. The size in the file may be wrong, or the image was '
        'turned.'),
    'mask-outside': Rule(
        'note', 'masks outside their image', DATA, 'look whether the image was turned or cut'),
    'few-points': Rule(
        'note', 'polygons of less than three points', DATA, 'delete them: they are not trained on'),
    'not-trained': Rule(
        'note', 'annotations that are left out of training', DATA, 'leave them if that is meant'),
    'missing-data': Rule(
        'error', 'files and folders of data sets that are not there', DATA,
        '--data-root DIR says where your copy lies', 'loading'),
    'missing-file': Rule(
        'error', 'files that are not there', DATA, 'restore the file, or delete its entry',
        'sample'),
    'broken-link': Rule(
        'error', 'links that lead nowhere', DATA, 'restore what the link names', 'sample'),
    'unreadable-file': Rule(
        'error', 'files that cannot be read', DATA, 'look at permissions and at the disk', 'sample',
        meaning='Damaged files, and images whose values have no known range. Training stops at '
        'them, takes another image, or sees wrong values.'),
    'empty-file': Rule(
        'error', 'files of 0 bytes', DATA, 'copy or download the file again', 'sample'),
    'not-an-image': Rule(
        'error', 'files that are no image that can be read', DATA, 'save it as PNG or JPEG',
        'sample'),
    'damaged-image': Rule(
        'error', 'files that are cut off or damaged', DATA, 'copy or download the file again',
        'sample'),
    'other-size': Rule(
        'error', 'images of another size than their annotations', DATA,
        'annotate the image anew, or restore the one that was annotated', 'meaning',
        meaning='Compared with the size in the file of annotations, or that of the label map. '
        'The image may have been turned or resized since.'),
    'large-image': Rule(
        'note', 'images that are too large to be decoded here', DATA,
        'cut it up: decoding takes gigabytes'),
    'no-label-map': Rule(
        'error', 'images without a label map', DATA, 'add the label map, or move the image away',
        'sample'),
    'other-label-map': Rule(
        'error', 'label maps of another size than their images', DATA,
        'annotate the image anew, or restore the one that was annotated', 'sample'),
    'no-image': Rule(
        'error', 'label maps without an image', DATA,
        'restore the image, or move the label map away: it is not trained on', 'meaning'),
    'stale-conversion': Rule(
        'error', 'conversions that are older than their sources', DATA,
        'convert again; to train on it as it is, remove sources.json from its folder', 'loading'),
    'unknown-sources': Rule(
        'note', 'conversions that were not compared with their sources', DATA,
        'convert on this machine if the sources may have changed'),
    'outside': Rule(
        'error', 'files outside of the folders of their data set', DATA,
        'look which they are; if they are meant, say --allow-outside', 'loading'),
    'wrong-label-map': Rule(
        'error', 'label maps that cannot be used', DATA, 'save it as PNG of one channel and 8 bits',
        'sample'),
    'unknown-label': Rule(
        'error', 'label maps with labels that no class has', DATA,
        'add the class to the config, or set the pixels to 255; look at reduce_zero_label',
        'loading',
        meaning='Training stops at them, or leaves them out. Classes may be missing from the '
        'config.'),
    'empty-label-map': Rule(
        'note', 'label maps without any label', DATA, 'leave them, or move them away'),
    'nothing-to-check': Rule(
        'note', 'data sets of which files alone were looked at', DATA,
        'their annotations are of a form that is not known here'),
    'partly-checked': Rule(
        'note', 'data sets that were not looked at in full', DATA,
        'colonnade check_data CONFIG looks at every file and applies every rule'),
    # conversions, and data before a training
    'conversion-fault': Rule(
        'error', 'data that no config can be written for', CONVERSIONS, effect='loading'),
    'conversion-note': Rule('note', 'what is assumed, repaired or left out', CONVERSIONS),
    'nothing-to-learn': Rule(
        'error', 'trainings that have nothing to learn from', CONVERSIONS, effect='loading'),
    'shared-images': Rule(
        'warning', 'images that are in training and validation', CONVERSIONS, effect='meaning'),
    # what only looks wrong
    'channel-mean': Rule(
        'note', 'means of another order of channels or range than the images', BROWSER),
    'cross-polygon': Rule(
        'note', 'polygons that cross themselves', BROWSER,
        meaning='The outline crosses itself, so that a part may count as outside. Large ones '
        'come first.'),
    'dataset-build': Rule(
        'error', 'data sets that cannot be built', BROWSER,
        meaning='Training and evaluation would stop.'),
    'double-box': Rule(
        'note', 'two boxes of one class at nearly one place', BROWSER,
        meaning='Their intersection over union is above 0.9. An object may have been annotated '
        'twice.'),
    'huge-image': Rule(
        'note', 'images of more than 40 million pixels', BROWSER,
        meaning='Decoding takes long, and small objects vanish when they are resized: cut them '
        'up.'),
    'image-without-annotations': Rule(
        'note', 'images without annotations', BROWSER,
        meaning='They teach what is no object, if that is meant. Somebody may also have '
        'forgotten them.'),
    'islands': Rule(
        'note', 'label maps of 20 islands or more', BROWSER,
        meaning='An island is a connected part of a class of fewer than 10 pixels. Maps that '
        'were resized or saved with losses have many.'),
    'long-box': Rule(
        'note', 'boxes more than 20 times as long as wide', BROWSER,
        meaning='Two corners may lie on one line by mistake. Poles and wires are like that too.'),
    'mask-beyond-box': Rule(
        'note', 'masks that reach out of their box', BROWSER,
        meaning='By more than two pixels and 5 % of the longer side. One may be of another '
        'object.'),
    'rare-class': Rule(
        'note', 'classes with fewer than 10 objects', BROWSER,
        meaning='In training, a model can hardly learn them. In validation, their score is '
        'mostly chance.'),
    'rare-label': Rule(
        'note', 'classes with fewer than 10 images', BROWSER,
        meaning='In training, a model can hardly learn them. In validation, their score is '
        'mostly chance.'),
    'similar-images': Rule(
        'note', 'images that look like another of the same split', BROWSER,
        meaning='Their difference hashes of 64 bits differ in at most 6, and their gray values '
        'little. Frames of a video are like that; they teach little more than one.'),
    'split-images': Rule(
        'note', 'images that two splits have', BROWSER,
        meaning='Their difference hashes of 64 bits differ in at most 6, and their gray values '
        'little. A model that was trained on an image is not tested by it.'),
    'tiny-box': Rule(
        'note', 'boxes of one pixel or less', BROWSER,
        meaning='A side is at most one pixel long. mmdet leaves out boxes with a side below one '
        'pixel.'),
    'unlabelled-map': Rule(
        'note', 'label maps of which more than 90% is unlabelled', BROWSER,
        meaning='Label 0 may be a class that is taken for unlabelled, or the work is not '
        'finished.'),
    'whole-image-box': Rule(
        'note', 'boxes that cover their whole image', BROWSER,
        meaning="Both sides are at least 99 % of the image's. A box may stand for a class of "
        'the image.'),
}  # yapf: disable

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


class Rule(NamedTuple):
    """A rule that configs or data can break.

    Attributes:
        severity: Severity of each breach.
        title: Noun phrase for all breaches, in lower case.
        fix: Imperative that fits each breach; empty if each finding has its own.
        effect: What training does, unless a finding says otherwise. Defaults to ``'loading'`` for
            errors.
        meaning: When something counts as a breach, and what it may mean; for pages.
        page: Page of the docs and the section in it.
    """
    severity: Severity
    title: str
    fix: str = ''
    effect: Effect = 'none'
    meaning: str = ''
    page: str = ''


def effect_of(rule: Rule) -> Effect:
    """Return the effect of a row of the tables below."""
    return 'loading' if rule.severity == 'error' and rule.effect == 'none' else rule.effect


OF_CONFIGS = {
    'arch': Rule('error', 'architectures that a backbone does not have'),
    'batch-size': Rule('error', 'batches that are too small to be normalised'),
    'block-index': Rule('error', 'blocks that a backbone does not have'),
    'channel-order': Rule('warning', 'images in another order of channels than the weights need'),
    'class-file': Rule('error', 'files of classes that are not there'),
    'class-names': Rule('error', 'classes that annotations do not have, or have in another order'),
    'class-count': Rule('error', 'heads of another number of classes than their data'),
    'config-section': Rule('error', 'sections of a config that have no settings'),
    'data-root': Rule('error', 'folders of data that cannot be used'),
    'ignored-label': Rule('warning', 'labels that one part ignores and another learns'),
    'late-change': Rule('warning',
        'changes of the learning rate that never come, or not to their end'),
    'late-checkpoint': Rule('warning', 'checkpoints that are never saved, or at the end alone'),
    'late-evaluation': Rule('warning', 'evaluations that never come, or at the end alone'),
    'level-count': Rule('error', 'heads or necks of another number of maps than they get'),
    'loading-masks': Rule('error', 'masks that a head learns from and no step loads'),
    'loop-parts': Rule('error', 'parts of a loop of which others are missing'),
    'meta-keys': Rule('error', 'keys that metrics need and samples lack'),
    'metric-file': Rule('warning', 'metrics that read another file than their data set'),
    'metric-masks': Rule('error', 'metrics of masks of a model that predicts none'),
    'metric-task': Rule('error', 'metrics of another task than their data set'),
    'misnamed-classes': Rule('error', 'classes under a name that nothing reads'),
    'missing-step': Rule('error', 'steps without which a pipeline breaks'),
    'model-build': Rule('error', 'models that cannot be built'),
    'normalisation': Rule('warning', 'images that are normalised otherwise than the weights need'),
    'not-checked': Rule('note', 'what could not be checked'),
    'number-range': Rule('error', 'numbers that are too small or too large'),
    'palette': Rule('error', 'palettes of another number of colours than classes'),
    'parameter-key': Rule('warning', 'keys of learning rates that match no parameter'),
    'prefix-tokens': Rule('error', 'tokens of no place that a pyramid would get'),
    'setting-type': Rule('error', 'settings of the wrong kind'),
    'step-build': Rule('error', 'steps of a pipeline that cannot be built'),
    'training-length': Rule('error', 'trainings without a length, or with two'),
    'training-step': Rule('error', 'models that fail in a step of training'),
    'unknown-option': Rule('error', 'options that no setting is named by'),
    'unknown-setting': Rule('error', 'settings that nothing reads'),
    'unknown-type': Rule('error', 'types that nothing registers'),
    'unread-section': Rule('warning', 'sections that nothing reads'),
    'weights-arch': Rule('error', 'weights of another architecture than the backbone'),
    'weights-file': Rule('error', 'weights that are not there, or do not fit'),
    'width': Rule('error', 'widths or strides that parts of a model do not agree on'),
    'window': Rule('error', 'windows of tests that leave gaps'),
    'work-dir': Rule('error', 'work dirs that cannot be written'),
    'zero-label': Rule('error', 'steps and data sets that disagree on reduce_zero_label'),
    'zero-labels': Rule('warning', 'data sets that disagree on reduce_zero_label'),
}  # yapf: disable
OF_DATA = {
    'pickle': Rule('error', 'annotations whose reading runs code'),
    'unreadable-annotations': Rule('error', 'annotation files that cannot be read',
        "write the file again, in COCO's form"),
    'incomplete-entry': Rule('error', 'entries without a key that is needed', 'add the key'),
    'wrong-value': Rule('error', 'entries with a value that cannot be used', 'correct the value'),
    'no-iscrowd': Rule('error', 'annotations without iscrowd',
        'add "iscrowd": 0, which pycocotools needs'),
    'repeated-annotation-id': Rule('error', 'annotation ids that are there twice',
        'number annotations anew, from 1'),
    'repeated-image-id': Rule('error', 'image ids that are there twice',
        'number images anew: of two with one id, one is lost', 'meaning'),
    'repeated-category': Rule('error', 'categories that are there twice', 'merge or rename them'),
    'repeated-file': Rule('note', 'image files that are there twice',
        'merge their annotations into one image'),
    'unknown-image': Rule('error', 'annotations of images that are not in the file',
        'add the image or delete the annotation: it is not trained on', 'meaning'),
    'unknown-category': Rule('error', 'annotations of categories that are not in the file',
        'add the category or delete the annotation: it is not trained on', 'meaning'),
    'id-0': Rule('error', 'annotations of id 0',
        'number annotations from 1: evaluation takes 0 for "not matched"', 'meaning'),
    'no-segmentation': Rule('error', 'annotations without a segmentation',
        'add it, or train boxes alone (colonnade create_config --boxes)', 'sample'),
    'wrong-segmentation': Rule('error', 'segmentations that are malformed',
        'correct or delete the annotation', 'sample'),
    'empty-box': Rule('note', 'boxes without area',
        'correct the box, or leave it: it is not trained on'),
    'box-outside': Rule('note', 'boxes outside their image',
        'correct the box, or leave it: it is not trained on'),
    'box-beyond': Rule('note', 'boxes that reach out of their image',
        'look whether the image was turned or cut; else leave it',
        meaning='By more than one pixel. Its size in the file may be wrong, or it was turned.'),
    'mask-outside': Rule('note', 'masks outside their image',
        'look whether the image was turned or cut'),
    'few-points': Rule('note', 'polygons of less than three points',
        'delete them: they are not trained on'),
    'not-trained': Rule('note', 'annotations that are left out of training',
        'leave them if that is meant'),
    'missing-data': Rule('error', 'files and folders of data sets that are not there',
        '--data-root DIR says where your copy lies'),
    'missing-file': Rule('error', 'files that are not there',
        'restore the file, or delete its entry', 'sample'),
    'broken-link': Rule('error', 'links that lead nowhere', 'restore what the link names',
        'sample'),
    'unreadable-file': Rule('error', 'files that cannot be read',
        'look at permissions and at the disk', 'sample',
        meaning='Damaged files, and images whose values have no known range. Training stops at '
        'them, takes another image, or sees wrong values.'),
    'empty-file': Rule('error', 'files of 0 bytes', 'copy or download the file again', 'sample'),
    'not-an-image': Rule('error', 'files that are no image that can be read',
        'save it as PNG or JPEG', 'sample'),
    'damaged-image': Rule('error', 'files that are cut off or damaged',
        'copy or download the file again', 'sample'),
    'other-size': Rule('error', 'images of another size than their annotations',
        'annotate the image anew, or restore the one that was annotated', 'meaning',
        meaning='Compared with the size in the file of annotations, or that of the label map. '
        'The image may have been turned or resized since.'),
    'large-image': Rule('note', 'images that are too large to be decoded here',
        'cut it up: decoding takes gigabytes'),
    'no-label-map': Rule('error', 'images without a label map',
        'add the label map, or move the image away', 'sample'),
    'other-label-map': Rule('error', 'label maps of another size than their images',
        'annotate the image anew, or restore the one that was annotated', 'sample'),
    'no-image': Rule('error', 'label maps without an image',
        'restore the image, or move the label map away: it is not trained on', 'meaning'),
    'stale-conversion': Rule('error', 'conversions that are older than their sources',
        'convert again; to train on it as it is, remove sources.json from its folder'),
    'unknown-sources': Rule('note', 'conversions that were not compared with their sources',
        'convert on this machine if the sources may have changed'),
    'outside': Rule('error', 'files outside of the folders of their data set',
        'look which they are; if they are meant, say --allow-external-files'),
    'wrong-label-map': Rule('error', 'label maps that cannot be used',
        'save it as PNG of one channel and 8 bits', 'sample'),
    'unknown-label': Rule('error', 'label maps with labels that no class has',
        'add the class to the config, or set the pixels to 255; look at reduce_zero_label',
        meaning='Training stops at them, or leaves them out. Classes may be missing from the '
        'config.'),
    'empty-label-map': Rule('note', 'label maps without any label',
        'leave them, or move them away'),
    'nothing-to-check': Rule('note', 'data sets of which files alone were looked at',
        'their annotations are of a form that is not known here'),
    'skipped-check': Rule('note', 'checks that were not made because of other findings',
        'correct those first, and check again'),
    'partly-checked': Rule('note', 'data sets that were not looked at in full',
        'colonnade check_dataset CONFIG looks at every file and applies every rule'),
}  # yapf: disable
OF_CONVERSIONS = {
    'conversion-fault': Rule('error', 'data that no config can be written for'),
    'conversion-note': Rule('note', 'what is assumed, repaired or left out'),
    'nothing-to-learn': Rule('error', 'trainings that have nothing to learn from'),
    'shared-images': Rule('warning', 'images that are in training and validation',
        effect='meaning'),
}  # yapf: disable
OF_LOOKS = {
    'channel-mean': Rule('note', 'means of another order of channels or range than the images'),
    'cross-polygon': Rule('note', 'polygons that cross themselves',
        meaning='A part may count as outside where an outline crosses itself, largest first.'),
    'dataset-build': Rule('error', 'data sets that cannot be built',
        meaning='Training and evaluation would stop.'),
    'double-box': Rule('note', 'two boxes of one class at nearly one place',
        meaning='Their IoU is above 0.9. An object may have been annotated twice.'),
    'huge-image': Rule('note', 'images of more than 40 million pixels',
        meaning='Decoding takes long, and resizing loses small objects: cut them up.'),
    'image-without-annotations': Rule('note', 'images without annotations',
        meaning='They teach what is no object, if that is meant. They may also be forgotten.'),
    'islands': Rule('note', 'label maps of 20 islands or more',
        meaning='An island is a connected part of a class of fewer than 10 pixels. Maps that '
        'were resized or saved with losses have many.'),
    'long-box': Rule('note', 'boxes more than 20 times as long as wide',
        meaning='Two corners may lie on one line by mistake. Poles and wires are like that too.'),
    'mask-beyond-box': Rule('note', 'masks that reach out of their box',
        meaning='By more than two pixels and 5 % of the side. One may be of another object.'),
    'rare-class': Rule('note', 'classes with fewer than 10 objects',
        meaning='A model can hardly learn them, and their score is mostly chance.'),
    'rare-label': Rule('note', 'classes with fewer than 10 images',
        meaning='A model can hardly learn them, and their score is mostly chance.'),
    'similar-images': Rule('note', 'images that look like another of the same split',
        meaning='Their difference hashes of 64 bits differ in at most 6, and their gray values '
        'little. Frames of a video are like that; they teach little more than one.'),
    'split-images': Rule('note', 'images that two splits have',
        meaning='Their difference hashes of 64 bits differ in at most 6, and their gray values '
        'little. A model that was trained on an image is not tested by it.'),
    'tiny-box': Rule('note', 'boxes of one pixel or less',
        meaning='mmdet leaves out boxes with a side of less than one pixel.'),
    'unlabelled-map': Rule('note', 'label maps of which more than 90% is unlabelled',
        meaning='Label 0 may be a class that is taken for unlabelled, or work is unfinished.'),
    'whole-image-box': Rule('note', 'boxes that cover their whole image',
        meaning="Both sides are at least 99 % of the image's. It may be the class of an image."),
}  # yapf: disable
#: rule by its name
RULES: dict[str, Rule] = {
    name: rule._replace(page=page, effect=effect_of(rule))
    for page, rules in {
        'configs.md#check-a-config': OF_CONFIGS,
        'data.md#check-the-data': OF_DATA,
        'data.md#what-is-checked': OF_CONVERSIONS,
        'browse.md#what-is-suspected': OF_LOOKS,
    }.items()
    for name, rule in rules.items()
}

"""All rules for configs and data: severity, meaning and documentation of each violation."""
from __future__ import annotations

from typing import Literal, NamedTuple

#: an ``'error'`` stops training before it starts, and prevents a config from being created; a
#: ``'warning'`` is logged; a ``'note'`` asks for a look at the data, or lists what was not checked
Severity = Literal['error', 'warning', 'note']
#: effect of data on training: ``loading`` the dataset fails; a ``sample`` fails; training uses
#: unintended data (``meaning``); training is not affected (``none``)
Effect = Literal['loading', 'sample', 'meaning', 'none']
EFFECTS: tuple[Effect, ...] = ('loading', 'sample', 'meaning', 'none')
STOPPING: tuple[Effect, ...] = ('loading', 'sample')
SEVERITIES: tuple[Severity, ...] = ('error', 'warning', 'note')


class Rule(NamedTuple):
    """Rule that configs or data can violate.

    Attributes:
        severity: Severity of each violation.
        title: Noun phrase for all violations, in lower case.
        fix: Imperative for every violation; empty if each finding has its own.
        effect: Effect on training, unless a finding has its own. Defaults to ``'loading'`` for
            errors.
        meaning: Definition and possible causes of the violation, for HTML pages.
        page: Page of the docs, with its section.
    """
    severity: Severity
    title: str
    fix: str = ''
    effect: Effect = 'none'
    meaning: str = ''
    page: str = ''


CONFIG_RULES = {
    'arch': Rule('error', 'unknown backbone architectures'),
    'batch-size': Rule('error', 'batches that are too small for batch norm'),
    'block-index': Rule('error', 'block indices that exceed the depth of a backbone'),
    'channel-order': Rule('warning', 'images in a different channel order than the weights expect'),
    'class-file': Rule('error', 'missing class-name files'),
    'class-names': Rule('error',
        'classes that are missing from the annotations or in a different order'),
    'class-count': Rule('error', 'heads whose number of classes differs from that of their data'),
    'config-section': Rule('error', 'sections of the wrong type'),
    'data-root': Rule('error', 'unusable data roots'),
    'ignored-label': Rule('warning', 'labels that are ignored in one place and learned in another'),
    'late-change': Rule('warning',
        'learning rate schedules that never start or are cut off'),
    'late-checkpoint': Rule('warning', 'checkpoints that are never saved, or only at the end'),
    'late-evaluation': Rule('warning', 'evaluations that never run, or run only at the end'),
    'level-count': Rule('error',
        'heads or necks that expect a different number of levels than they receive'),
    'deferred-blocks': Rule('error', 'backbones whose blocks are never run, or are run twice'),
    'loading-masks': Rule('error', 'masks that a head needs but no step loads'),
    'loop-parts': Rule('error', 'incomplete loop settings'),
    'meta-keys': Rule('error', 'missing meta keys that metrics need'),
    'metric-file': Rule('warning', 'metrics that read a different file than their dataset does'),
    'metric-masks': Rule('error', 'mask metrics for a model that predicts no masks'),
    'metric-task': Rule('error', "metrics for a task other than their dataset's"),
    'misnamed-classes': Rule('error', 'classes under an unknown key'),
    'missing-step': Rule('error', 'missing pipeline steps'),
    'model-build': Rule('error', 'models that cannot be built'),
    'normalisation': Rule('warning', 'images that are not normalized as the weights expect'),
    'not-checked': Rule('note', 'checks that could not run'),
    'number-range': Rule('error', 'numbers out of range'),
    'palette': Rule('error', 'palettes whose number of colors differs from the number of classes'),
    'parameter-key': Rule('warning', 'learning rate keys that match no parameter'),
    'prefix-tokens': Rule('error', 'prefix tokens that a pyramid cannot use'),
    'setting-type': Rule('error', 'settings of the wrong type'),
    'step-build': Rule('error', 'pipeline steps that cannot be built'),
    'training-length': Rule('error', 'missing or ambiguous training lengths'),
    'training-step': Rule('error', 'models that fail in a training step'),
    'unknown-option': Rule('error', 'options that match no setting'),
    'unknown-setting': Rule('error', 'unknown settings'),
    'unknown-type': Rule('error', 'unknown types'),
    'unread-section': Rule('warning', 'unknown sections'),
    'weights-arch': Rule('error', 'weights for a different architecture than that of the backbone'),
    'weights-file': Rule('error', 'missing or incompatible weights'),
    'width': Rule('error', 'mismatched widths or strides'),
    'window': Rule('error', 'sliding windows that leave gaps'),
    'work-dir': Rule('error', 'work dirs that are not writable'),
    'zero-label': Rule('error', 'steps that contradict the reduce_zero_label of their dataset'),
    'zero-labels': Rule('warning', 'datasets that disagree on reduce_zero_label'),
}  # yapf: disable
DATA_RULES = {
    'pickle': Rule('error', 'annotations that would run code'),
    'unreadable-annotations': Rule('error', 'annotation files that cannot be read',
        'save the file again in COCO format'),
    'incomplete-entry': Rule('error', 'entries without a required key', 'add the key'),
    'wrong-value': Rule('error', 'entries with an invalid value', 'correct the value'),
    'no-iscrowd': Rule('error', 'annotations without iscrowd',
        'add "iscrowd": 0, which pycocotools needs'),
    'repeated-annotation-id': Rule('error', 'duplicate annotation IDs',
        'renumber the annotations from 1'),
    'repeated-image-id': Rule('error', 'duplicate image IDs',
        'renumber the images: only one image per ID is used', 'meaning'),
    'repeated-category': Rule('error', 'duplicate categories', 'merge or rename them'),
    'repeated-file': Rule('note', 'duplicate image files',
        'merge their annotations into one image'),
    'unknown-image': Rule('error', 'annotations of images that are not in the file',
        'add the image or delete the annotation: it is not used for training', 'meaning'),
    'unknown-category': Rule('error', 'annotations of categories that are not in the file',
        'add the category or delete the annotation: it is not used for training', 'meaning'),
    'id-0': Rule('error', 'annotations with ID 0',
        'renumber the annotations from 1: in evaluation, 0 means "not matched"', 'meaning'),
    'no-segmentation': Rule('error', 'annotations without a segmentation',
        'add a segmentation, or train with boxes only (colonnade create-config --boxes-only)',
        'sample'),
    'wrong-segmentation': Rule('error', 'malformed segmentations',
        'correct or delete the annotation', 'sample'),
    'empty-box': Rule('note', 'boxes with zero area',
        'fix the box, or leave it: training ignores it'),
    'box-outside': Rule('note', 'boxes outside their image',
        'fix the box, or leave it: training ignores it'),
    'box-beyond': Rule('note', 'boxes that extend beyond their image',
        'check whether the image was rotated or cropped; if not, keep the box',
        meaning='By more than one pixel. The size in the file may be wrong, or the image was '
        'rotated.'),
    'mask-outside': Rule('note', 'masks outside their image',
        'check whether the image was rotated or cropped'),
    'few-points': Rule('note', 'polygons with fewer than three points',
        'delete them: training ignores them'),
    'not-trained': Rule('note', 'annotations that training ignores',
        'keep them if that is intended'),
    'missing-data': Rule('error', 'missing dataset files and folders',
        'pass --data-root DIR with the path of your copy'),
    'missing-file': Rule('error', 'missing files',
        'restore the file or delete its entry', 'sample'),
    'broken-link': Rule('error', 'broken links', 'restore the target of the link',
        'sample'),
    'unreadable-file': Rule('error', 'files that cannot be read',
        'check the permissions and the disk', 'sample',
        meaning='Damaged files, and images with an unknown range of values. Training stops, '
        'uses another image, or gets wrong values.'),
    'empty-file': Rule('error', 'empty files', 'copy or download the file again', 'sample'),
    'not-an-image': Rule('error', 'files that are not readable images',
        'save the image as PNG or JPEG', 'sample'),
    'damaged-image': Rule('error', 'truncated or damaged files',
        'copy or download the file again', 'sample'),
    'other-size': Rule('error', 'images whose size differs from that in their annotations',
        'annotate the image again, or restore the image that was annotated', 'meaning',
        meaning='The size is compared with that in the annotation file or label map. '
        'The image may have been rotated or resized since it was annotated.'),
    'large-image': Rule('note', 'images that are too large to decode here',
        'split the image into tiles: decoding takes gigabytes of memory'),
    'no-label-map': Rule('error', 'images without a label map',
        'add the label map or move the image elsewhere', 'sample'),
    'other-label-map': Rule('error', 'label maps whose size differs from that of their images',
        'annotate the image again, or restore the image that was annotated', 'sample'),
    'no-image': Rule('error', 'label maps without an image',
        'restore the image or move the label map elsewhere: training ignores it', 'meaning'),
    'stale-conversion': Rule('error', 'outdated conversions',
        'convert again; to use a conversion unchanged, remove sources.json from its folder'),
    'unknown-sources': Rule('note', 'conversions whose sources are not available',
        'convert again on this host if the sources may have changed'),
    'outside': Rule('error', 'files outside the folders of their dataset',
        'check which files they are; if this is intended, pass --allow-external-files'),
    'wrong-label-map': Rule('error', 'label maps that cannot be used',
        'save them as 8-bit PNGs with one channel', 'sample'),
    'no-annotation': Rule('error', 'images without panoptic annotations',
        'annotate the image or delete its entry', 'meaning'),
    'unlisted-segment': Rule('error', 'pixels of segments that are not listed',
        'add the segment to segments_info, or set its pixels to 0, which is ignored', 'meaning'),
    'empty-segment': Rule('error', 'listed segments without pixels',
        'delete the segment; otherwise, the model learns an empty mask; '
        'colonnade create-config --data deletes such segments',
        'meaning'),
    'segment-shape': Rule('note', 'segments whose area or bbox does not match their pixels',
        'keep them, or repair them with colonnade create-config --data'),
    'repeated-segment-id': Rule('error', 'duplicate segment IDs in an image',
        'renumber the segments, in the PNG image too', 'meaning'),
    'unknown-label': Rule('error', 'label maps with labels that are not classes',
        'add the class to the config, or set the pixels to 255; check reduce_zero_label',
        meaning='Training stops, or ignores them. Classes may be missing from the '
        'config.'),
    'empty-label-map': Rule('note', 'label maps without labels',
        'keep them or move them elsewhere'),
    'nothing-to-check': Rule('note', 'datasets whose annotations were not checked',
        'check them yourself: the format of their annotations is unknown'),
    'skipped-check': Rule('note', 'checks that were skipped because of other findings',
        'fix those first, then check again'),
    'partly-checked': Rule('note', 'datasets that were only partly checked',
        'run colonnade check-dataset CONFIG to check every file and rule'),
}  # yapf: disable
CONVERSION_RULES = {
    'conversion-fault': Rule('error', 'data that cannot be converted'),
    'conversion-note': Rule('note', 'assumptions, repairs and omissions'),
    'conversion-result': Rule('note', 'formats that were detected, files that were written'),
    'nothing-to-learn': Rule('error', 'training sets without usable annotations'),
    'shared-images': Rule('warning', 'images in both training and validation',
        effect='meaning'),
}  # yapf: disable
BROWSER_RULES = {
    'channel-mean': Rule('note',
        'normalization means in a different channel order or range than the images'),
    'cross-polygon': Rule('note', 'self-intersecting polygons',
        meaning='Regions where an outline overlaps itself may count as outside. Largest first.'),
    'dataset-build': Rule('error', 'datasets that cannot be built',
        meaning='Training and evaluation would fail.'),
    'double-box': Rule('note', 'nearly identical boxes of the same class',
        meaning='Their IoU is above 0.9. An object may have been annotated twice.'),
    'huge-image': Rule('note', 'images of more than 40 million pixels',
        meaning='Decoding is slow, and resizing loses small objects: split them into tiles.'),
    'image-without-annotations': Rule('note', 'images without annotations',
        meaning='They may be intended as negative examples, or annotation may be unfinished.'),
    'islands': Rule('note', 'label maps with 20 or more tiny components',
        meaning='A tiny component is a connected region of a class with fewer than 10 pixels. '
        'Maps that were resized or saved with lossy compression have many.'),
    'long-box': Rule('note', 'boxes with an aspect ratio above 20',
        meaning='The corners of such a box may have been placed almost level with each other by '
        'mistake. Poles and wires have such boxes too.'),
    'mask-beyond-box': Rule('note', 'masks that extend beyond their box',
        meaning='By more than two pixels and more than 5% of the side length. The mask or the box '
        'may belong to another object.'),
    'rare-class': Rule('note', 'classes with fewer than 10 objects',
        meaning='A model can hardly learn them, and their score is mostly noise.'),
    'rare-label': Rule('note', 'classes with fewer than 10 images',
        meaning='A model can hardly learn them, and their score is mostly noise.'),
    'similar-images': Rule('note', 'near-duplicate images in the same split',
        meaning='Their 64-bit difference hashes differ in at most 6 bits, and their gray values '
        'differ little. Typical for video frames, which add little information.'),
    'split-images': Rule('note', 'near-duplicate images in different splits',
        meaning='Their 64-bit difference hashes differ in at most 6 bits, and their gray values '
        'differ little. Evaluation on a training image is meaningless.'),
    'tiny-box': Rule('note', 'boxes at most one pixel wide or high',
        meaning='mmdet ignores boxes with a side of less than one pixel, also after resizing.'),
    'unlabelled-map': Rule('note', 'label maps with more than 90% unlabeled pixels',
        meaning='Label 0 may be a class that is treated as unlabeled, or annotation may be '
        'unfinished.'),
    'whole-image-box': Rule('note', 'boxes that cover the whole image',
        meaning="Both sides are at least 99% as long as those of the image. Such a box may be "
        'an image-level label.'),
}  # yapf: disable
#: rule name -> rule
RULES: dict[str, Rule] = {
    name:
    rule._replace(
        page=page,
        effect='loading' if (rule.severity, rule.effect) == ('error', 'none') else rule.effect)
    for page, rules in {
        'guides/train.md#check-a-config': CONFIG_RULES,
        'guides/inspect_dataset.md#check-the-dataset': DATA_RULES,
        'guides/custom_datasets.md#what-is-validated': CONVERSION_RULES,
        'guides/inspect_dataset.md#suspected-issues': BROWSER_RULES,
    }.items()
    for name, rule in rules.items()
}

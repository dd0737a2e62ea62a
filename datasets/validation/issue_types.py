"""The kinds of what can be wrong with a data set, and what to do about each."""
from __future__ import annotations

from typing import Literal, NamedTuple

#: what training does: ``loading`` of the data set fails; a ``sample`` fails; it goes on with other
#: data than meant (``meaning``); it goes on as it should (``none``)
Effect = Literal['loading', 'sample', 'meaning', 'none']
EFFECTS: tuple[Effect, ...] = ('loading', 'sample', 'meaning', 'none')
STOPPING: tuple[Effect, ...] = ('loading', 'sample')

#: kind, text, and effect if it is not that of the kind
Fault = tuple[str, str, Effect | None]


class Kind(NamedTuple):
    """A kind of fault.

    Attributes:
        title: What they are, in the plural.
        effect: What training does, unless a finding says otherwise.
        advice: What to do.
    """
    title: str
    effect: Effect
    advice: str


NO_KIND = Kind('other faults', 'loading', 'do what the message says')
KINDS = {
    'unreadable-annotations':
    Kind('annotation files that cannot be read', 'loading',
         'write the file again, in COCO\'s form'),
    'incomplete-entry':
    Kind('entries without a key that is needed', 'loading', 'add the key'),
    'wrong-value':
    Kind('entries with a value that cannot be used', 'loading', 'correct the value'),
    'no-iscrowd':
    Kind('annotations without iscrowd', 'none', 'add "iscrowd": 0, which pycocotools needs'),
    'repeated-annotation-id':
    Kind('annotation ids that are there twice', 'loading', 'number annotations anew, from 1'),
    'repeated-image-id':
    Kind('image ids that are there twice', 'meaning',
         'number images anew: of two with one id, one is lost'),
    'repeated-category':
    Kind('categories that are there twice', 'loading', 'merge or rename them'),
    'repeated-file':
    Kind('image files that are there twice', 'none', 'merge their annotations into one image'),
    'unknown-image':
    Kind('annotations of images that are not in the file', 'meaning',
         'add the image or delete the annotation: it is not trained on'),
    'unknown-category':
    Kind('annotations of categories that are not in the file', 'meaning',
         'add the category or delete the annotation: it is not trained on'),
    'id-0':
    Kind('annotations of id 0', 'meaning',
         'number annotations from 1: evaluation takes 0 for "not matched"'),
    'no-segmentation':
    Kind('annotations without a segmentation', 'sample',
         'add it, or train boxes alone (colonnade new_config --boxes)'),
    'wrong-segmentation':
    Kind('segmentations that are malformed', 'sample', 'correct or delete the annotation'),
    'empty-box':
    Kind('boxes without area', 'none', 'correct the box, or leave it: it is not trained on'),
    'box-outside':
    Kind('boxes outside their image', 'none', 'correct the box, or leave it: it is not trained on'),
    'box-beyond':
    Kind('boxes that reach out of their image', 'none',
         'look whether the image was turned or cut; else leave it'),
    'mask-outside':
    Kind('masks outside their image', 'none', 'look whether the image was turned or cut'),
    'few-points':
    Kind('polygons of less than three points', 'none', 'delete them: they are not trained on'),
    'not-trained':
    Kind('annotations that are left out of training', 'none', 'leave them if that is meant'),
    'missing-data':
    Kind('files and folders of data sets that are not there', 'loading',
         '--data-root DIR says where your copy lies'),
    'missing-file':
    Kind('files that are not there', 'sample', 'restore the file, or delete its entry'),
    'broken-link':
    Kind('links that lead nowhere', 'sample', 'restore what the link names'),
    'unreadable-file':
    Kind('files that cannot be read', 'sample', 'look at permissions and at the disk'),
    'empty-file':
    Kind('files of 0 bytes', 'sample', 'copy or download the file again'),
    'not-an-image':
    Kind('files that are no image that can be read', 'sample', 'save it as PNG or JPEG'),
    'damaged-image':
    Kind('files that are cut off or damaged', 'sample', 'copy or download the file again'),
    'other-size':
    Kind('images of another size than their annotations', 'meaning',
         'annotate the image anew, or restore the one that was annotated'),
    'large-image':
    Kind('images that are too large to be decoded here', 'none',
         'cut it up: decoding takes gigabytes'),
    'no-label-map':
    Kind('images without a label map', 'sample', 'add the label map, or move the image away'),
    'other-label-map':
    Kind('label maps of another size than their images', 'sample',
         'annotate the image anew, or restore the one that was annotated'),
    'no-image':
    Kind('label maps without an image', 'meaning',
         'restore the image, or move the label map away: it is not trained on'),
    'stale-conversion':
    Kind('conversions that are older than their sources', 'loading',
         'convert again; to train on it as it is, remove sources.json from its folder'),
    'unknown-sources':
    Kind('conversions that were not compared with their sources', 'none',
         'convert on this machine if the sources may have changed'),
    'outside':
    Kind('files outside of the folders of their data set', 'loading',
         'look which they are; if they are meant, say --allow-outside'),
    'wrong-label-map':
    Kind('label maps that cannot be used', 'sample', 'save it as PNG of one channel and 8 bits'),
    'unknown-label':
    Kind('label maps with labels that no class has', 'loading',
         'add the class to the config, or set the pixels to 255; look at reduce_zero_label'),
    'empty-label-map':
    Kind('label maps without any label', 'none', 'leave them, or move them away'),
    'nothing-to-check':
    Kind('data sets of which files alone were looked at', 'none',
         'their annotations are of a form that is not known here'),
}  # yapf: disable

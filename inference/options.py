"""Options of prediction, serving and packages; importing them takes no time."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path

from colonnade.common.options import (CHECKPOINT, FUSE, Amp, ModelOptions, amp_option, argument,
                                      option)

PACKAGE_TRUST = ('build and import whatever the config names, and run what is pickled in the '
                 'weights; only if you trust who made them')
KINDS = ('pictures', 'results', 'labels')


@dataclass
class PredictOptions(ModelOptions):
    """What is predicted, as ``colonnade predict --help`` says it.

    Attributes:
        labels_of_frames: Whether label maps of videos are written.
    """
    inputs: Sequence[str] = argument(
        'images, videos, folders of them, and patterns in quotes', (), metavar='INPUT')
    out: Path = option('folder to write', MISSING, metavar='DIR')
    resume: bool = option('go on in DIR where an earlier call stopped', False)
    outputs: Sequence[str] = option(
        'what to write (all that there is; label maps of videos only if named)', (), choices=KINDS)
    annotations: Path | None = option(
        "COCO's JSON with the ids of images and categories, for results", metavar='FILE')
    first_label: int | None = option(
        'label of the first class in label maps (0); 1 where 0 is unlabelled', metavar='N')
    threshold: float | None = option('instances of lower scores are not drawn (0.3)')
    opacity: float = option('of masks and classes, from 0 to 1 (%(default)s)', 0.5)
    every: int | None = option('each N-th frame of videos (1)', metavar='N')
    tile: int | None = option('predict larger images in tiles of this size', metavar='PIXELS')
    overlap: float | None = option('share that tiles have in common (0.25)')
    batch_size: int | None = option('images at a time (1, with a GPU 8)', metavar='N')
    amp: Amp = amp_option()
    fuse: bool | None = option(FUSE)
    limit: int | None = option('the first N inputs alone', metavar='N')
    labels_of_frames: bool = False


@dataclass
class ServeOptions(ModelOptions):
    """What the server is told, as ``colonnade serve --help`` says it."""
    checkpoint: str | None = argument(CHECKPOINT, None)
    host: str = option(
        'address to listen on; 0.0.0.0 lets everybody in who can reach this machine (%(default)s)',
        '127.0.0.1')
    port: int = option('0 for any that is free (%(default)s)', 7860)
    allowed_host: Sequence[str] = option(
        'name of the server behind a proxy, as in models.example.org; may be repeated', (),
        action='append',
        metavar='NAME')
    batch_size: int | None = option(
        'images that are computed at a time (1 on a CPU, else 8)', metavar='N')
    max_megabytes: float = option('largest file to accept (%(default)g)', 20., metavar='N')
    max_pixels: int | None = option(
        'largest image to accept (25 million, fewer with many classes)', metavar='N')
    timeout: float = option('until a request is given up (%(default)g)', 120., metavar='SECONDS')
    amp: Amp = amp_option()
    fuse: bool | None = option(FUSE)


@dataclass
class MakeOptions:
    """Write a folder."""
    config: Path = argument('config file, the name of one of ours, or a checkpoint of a run')
    checkpoint: str | None = argument(
        'file or URL of the trained model; left out where CONFIG is a checkpoint', None)
    out: Path | None = option('folder to write (default: packages/NAME_OF_CONFIG)')
    metrics: Path | None = option('metrics.json of colonnade test')
    data: str | None = option('what the metrics were computed on, for people')
    name: str | None = option('of the model (the name of the folder)')
    license: str | None = option('identifier of the licence, e.g. apache-2.0')
    notes: Path | None = option('Markdown file, a section of the README')
    trust: bool = option(PACKAGE_TRUST, False)


@dataclass
class CheckPackageOptions:
    """Compare hashes, and load it."""
    folder: Path = argument('a package')
    trust: bool = option(PACKAGE_TRUST, False)


@dataclass
class HubOptions:
    """How a hub knows its user."""
    token_file: Path | None = option('file of an access token (HF_TOKEN, or the login)')


@dataclass
class PushOptions(HubOptions):
    """Upload a folder to a hub's repository."""
    folder: Path = argument('a package')
    repository: str = argument('made if there is none', metavar='OWNER/NAME')
    private: bool = option('make a repository that is private', False)


@dataclass
class PullOptions(HubOptions):
    """Download a hub's repository to a folder."""
    repository: str = argument('of a package', metavar='OWNER/NAME[@REVISION]')
    out: Path = option('folder to write', MISSING)

"""Options of prediction, serving and packages; they must import nothing slow."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path

from colonnade.common.options import CONFIG, FUSE, Amp, ModelOptions, amp_option, argument, option

PACKAGE_TRUST = (
    'build and import everything that the config names, and unpickle the weights; pass it only '
    'if you trust the author')
OUTPUTS = ('visualizations', 'results', 'labels')


@dataclass
class InferenceOptions(ModelOptions):
    """How a model computes."""
    batch_size: int | None = option(
        'images per batch (default: 1 on a CPU, 8 on a GPU)', metavar='N')
    amp: Amp = amp_option()
    fuse: bool | None = option(FUSE)


@dataclass
class PredictOptions(InferenceOptions):
    """Options of ``colonnade predict``, as in ``colonnade predict --help``."""
    inputs: Sequence[str] = argument(
        'images, videos, folders of them, or quoted glob patterns', (), metavar='INPUT')
    out: Path = option('output folder', MISSING, metavar='DIR')
    resume: bool = option('resume an interrupted run in DIR', False)
    outputs: Sequence[str] = option(
        'what to write (default: all, except label maps of videos)', (), choices=OUTPUTS)
    ids_from: Path | None = option(
        'COCO JSON file whose image and category IDs the results use', metavar='FILE')
    label_offset: int | None = option(
        'value of the first class in label maps; use 1 if 0 is unlabeled (default: 0)', metavar='N')
    threshold: float | None = option(
        'minimum score of drawn instances (default: 0.3)', metavar='SCORE')
    opacity: float = option(
        'opacity of masks, label maps and segments, from 0 to 1 (default: %(default)s)', 0.5)
    frame_step: int | None = option(
        'run the model on every N-th frame of a video (default: 1)', metavar='N')
    tile_size: int | None = option(
        'predict larger images in tiles of this size; not for panoptic models (default: off)',
        metavar='PIXELS')
    tile_overlap: float | None = option(
        'fraction of a tile that overlaps the next one (default: 0.25)', metavar='FRACTION')
    max_inputs: int | None = option('predict only the first N inputs (default: all)', metavar='N')
    write_frame_labels: bool = False


@dataclass
class ServeOptions(InferenceOptions):
    """Options of the server, as in ``colonnade serve --help``."""
    host: str = option(
        'address to listen on; 0.0.0.0 allows anyone who can reach this host to connect '
        '(default: %(default)s)', '127.0.0.1')
    port: int = option('port; 0 for any free port (default: %(default)s)', 7860, metavar='N')
    allowed_host: Sequence[str] = option(
        'host name that clients use if the server is behind a proxy, e.g. models.example.org; '
        'can be repeated', (),
        action='append',
        metavar='NAME')
    max_megabytes: float = option(
        'maximum size of an uploaded file in MB (default: %(default)g)', 20., metavar='N')
    max_pixels: int | None = option(
        'maximum pixels per image (default: 20 million for detectors; up to 25 million for '
        'segmenters, fewer with many classes or --no-fuse)',
        metavar='N')
    timeout: float = option(
        'time limit for a request (default: %(default)g)', 120., metavar='SECONDS')
    batch_ms: float = option(
        'time that an image waits for others of equal size, to share a batch (default: '
        '%(default)g)',
        0.,
        metavar='MILLISECONDS')
    page: bool = option('serve the API only', True)
    token: str | None = option(
        'require the header "Authorization: Bearer TOKEN"; there is no page then (default: the '
        'environment variable COLONNADE_TOKEN, which other users of the host cannot see)',
        metavar='TOKEN')
    root_path: str = option(
        'path that a proxy removes from URLs, e.g. /models/shapes', '', metavar='PATH')
    access_log: Path | None = option(
        'file for a line of JSON per request; - for the standard output', metavar='FILE')


@dataclass
class MakeOptions:
    """Create a package."""
    config: Path = argument(f'{CONFIG}; or a checkpoint or the work dir of a run')
    checkpoint: str | None = argument(
        'file or URL of the full model; omit it if CONFIG is a checkpoint or a work dir', None)
    out: Path | None = option('folder to create (default: packages/NAME_OF_CONFIG)', metavar='DIR')
    metrics: Path | None = option('metrics.json written by colonnade test', metavar='FILE')
    data: str | None = option('name of the data that the metrics were computed on', metavar='NAME')
    name: str | None = option('name of the model (default: name of the folder)')
    license: str | None = option('license identifier, e.g. apache-2.0', metavar='ID')
    notes: Path | None = option('Markdown file to add to the README as a section', metavar='FILE')
    trust: bool = option(PACKAGE_TRUST, False)


@dataclass
class CheckPackageOptions:
    """Verify hashes and load the model."""
    folder: Path = argument('package folder')
    trust: bool = option(PACKAGE_TRUST, False)


@dataclass
class HubOptions:
    """Authentication at a hub."""
    token_file: Path | None = option(
        'file with an access token (default: HF_TOKEN, or the saved login)', metavar='FILE')


@dataclass
class PushOptions(HubOptions):
    """Upload a package to a repository of a hub."""
    folder: Path = argument('package folder')
    repository: str = argument('repository; created if it does not exist', metavar='OWNER/NAME')
    private: bool = option('create a private repository', False)


@dataclass
class PullOptions(HubOptions):
    """Download a package from a repository of a hub."""
    repository: str = argument('repository of a package', metavar='OWNER/NAME[@REVISION]')
    out: Path = option('folder to create', MISSING, metavar='DIR')

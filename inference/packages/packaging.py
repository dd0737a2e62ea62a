"""Commands of ``colonnade package``: make, check, push and pull."""
from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, get_token
from huggingface_hub.errors import (EntryNotFoundError, GatedRepoError, HfHubHTTPError,
                                    HFValidationError, LocalEntryNotFoundError,
                                    RepositoryNotFoundError, RevisionNotFoundError)
from huggingface_hub.hf_api import RepoFile

from colonnade.common.atomic_files import new_folder
from colonnade.common.errors import (FileError, MissingFileError, UserError, convert_errors,
                                     file_errors)
from colonnade.common.hashing import compute_sha256
from colonnade.engine.work_dir import Run
from colonnade.weights.downloads import require_hub
from colonnade.weights.sharded_files import is_sharded

from .. import load
from ..options import CheckPackageOptions, MakeOptions, PullOptions, PushOptions
from .creation import CardText, make_package, read_metrics
from .package import (CONFIG, METADATA, README, WEIGHTS, PackageMetadata, is_package_folder,
                      verify_files)
from .package_errors import PackageError

FILES = (README, METADATA, CONFIG, WEIGHTS)
TOKEN_HINT = 'pass --token-file FILE, set HF_TOKEN, or run hf auth login'


def make(args: MakeOptions) -> None:
    """Create a package and print a summary."""
    args.out = args.out or Path('packages', args.config.stem)
    if args.out.exists():
        raise UserError(f'{args.out} already exists: choose another folder')
    if is_package_folder(args.config):
        raise UserError(f'{args.config} is already a package: pass a config and a checkpoint, a '
                        'checkpoint of a run, or a work dir')
    checkpoint = args.checkpoint or str(args.config)
    if args.config.is_dir() and not is_sharded(args.config):
        args.checkpoint = checkpoint = str(Run(args.config).find_model(args.checkpoint)[1])
    text = CardText(
        name=args.name or args.out.resolve().name,
        license=args.license,
        data=args.data,
        notes=read_option('--notes', args.notes) if args.notes else '')
    metrics = read_metrics(args.metrics, checkpoint) if args.metrics else None
    model = load(args.config, args.checkpoint, device='cpu', trust=args.trust)
    for change in make_package(model, args.out, text, metrics=metrics, trust=args.trust):
        print(f'config: {change}')
    print_summary(verify_files(args.out), args.out)
    print(f'check with: colonnade package check {args.out}')


def check(args: CheckPackageOptions) -> None:
    """Verify hashes, read the config and load the model."""
    if not is_package_folder(args.folder):
        raise UserError(f'{args.folder} is not a package folder')
    model = load(args.folder, device='cpu', trust=args.trust)
    print(f'{args.folder} is complete, and the model can be loaded\n{model}')


@file_errors()
def push(args: PushOptions) -> None:
    """Upload a package as one commit, then verify the uploaded files."""
    token = read_token(args.token_file)
    metadata = verify_files(args.folder)
    if not (args.folder / README).is_file():
        raise MissingFileError(f'no {args.folder / README}: the package is incomplete')
    repository = args.repository
    if not (token or get_token()):
        raise UserError(f'{repository}: push needs a token with write access: {TOKEN_HINT}')
    api = HfApi(token=token)
    with explain_hub_errors(repository):
        require_hub()
        api.create_repo(repository, private=args.private, exist_ok=True)
        commit = api.create_commit(
            repository, [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=args.folder / name)
                for name in FILES
            ],
            commit_message=f'Add {metadata.name}')
        verify_upload(api, args.folder, repository, commit.oid)
    print(f'pushed and verified: {repository}@{commit.oid}')


def verify_upload(api: HfApi, folder: Path, repository: str, revision: str) -> None:
    """Raise a PackageError if a repository has other files than a folder.

    Large files are compared by the SHA-256 that the hub reports, small ones are downloaded.
    """
    stored = api.get_paths_info(repository, list(FILES), revision=revision)
    digests = {each.path: each.lfs.sha256 for each in stored
               if isinstance(each, RepoFile) and each.lfs}  # yapf: disable
    with tempfile.TemporaryDirectory() as scratch:
        for name in FILES:
            digest = digests.get(name) or compute_sha256(
                Path(api.hf_hub_download(repository, name, revision=revision, local_dir=scratch)))
            if digest != compute_sha256(folder / name):
                raise PackageError(f'{repository}@{revision}: {name} was stored with SHA-256 '
                                   f'{digest}: push again')


@file_errors()
def pull(args: PullOptions) -> None:
    """Download a package to a new folder, verify it, and print a summary."""
    name, _, revision = args.repository.partition('@')
    api = HfApi(token=read_token(args.token_file))
    with new_folder(args.out) as scratch:
        with explain_hub_errors(args.repository):
            require_hub()
            for file in FILES:
                api.hf_hub_download(name, file, revision=revision or None, local_dir=scratch)
        shutil.rmtree(scratch / '.cache', ignore_errors=True)  # left by huggingface_hub
        metadata = verify_files(scratch)
    print_summary(metadata, args.out)


@contextmanager
def explain_hub_errors(repository: str) -> Iterator[None]:
    """Context manager that turns errors of ``huggingface_hub`` into one sentence."""
    try:
        with convert_errors(  # the HTTP library depends on the version of huggingface_hub
                lambda error: UserError(f'{repository} cannot be reached: {error}'), OSError,
                ValueError, EntryNotFoundError):
            yield
    except HFValidationError as error:
        raise UserError(f'{repository} is not a valid OWNER/NAME: {error}') from error
    except GatedRepoError as error:
        raise UserError(f'{repository} is gated: accept its terms on its web page') from error
    except RepositoryNotFoundError as error:
        raise MissingFileError(f'{repository}: no such repository, or it is private and the token '
                               f'has no access: {TOKEN_HINT}') from error
    except RevisionNotFoundError as error:
        raise MissingFileError(f'{repository}: no such revision') from error
    except LocalEntryNotFoundError as error:  # raised if a download fails and nothing is cached
        raise UserError(f'{repository} cannot be reached: {error.__cause__}') from error
    except EntryNotFoundError as error:
        raise PackageError(f'{repository} is not a package: {error}') from error
    except HfHubHTTPError as error:
        raise FileError(f'{repository}: the hub rejected the request: {error}') from error


def read_token(path: Path | None) -> str | None:
    """Return the token in a file; None without a file, so that ``huggingface_hub`` finds one."""
    if path is None:
        return None
    token = read_option('--token-file', path).strip()
    if not token:
        raise UserError(f'--token-file {path} is empty')
    return token


def read_option(option: str, path: Path) -> str:
    """Return the text of a file that an option specifies."""
    try:
        return path.read_text(encoding='utf-8')
    except OSError as error:
        raise FileError(f'{option} {path} cannot be read: {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise UserError(f'{option} {path} is not a UTF-8 text file: {error.reason}') from error


def print_summary(metadata: PackageMetadata, folder: Path) -> None:
    """Print task, size and hashes of a package."""
    print(f'{folder}: {metadata.name}, {len(metadata.classes)} classes, {metadata.kind}, '
          f'{metadata.parameters / 1e6:.1f} million parameters')
    for name in (CONFIG, WEIGHTS):
        file = metadata.files[name]
        print(f'{name}: {file.bytes} bytes, SHA-256 {file.sha256}')
    print(f'load with: colonnade.load({str(folder)!r})')

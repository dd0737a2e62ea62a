"""Packages on a hub that ``huggingface_hub`` speaks to; ``HF_ENDPOINT`` says which."""
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
from colonnade.common.errors import FileError, MissingFileError, UserError, file_errors
from colonnade.common.hashing import compute_sha256
from colonnade.settings.plain_config import PackageError
from colonnade.weights.downloads import require_hub

from .metadata import CARD, CONFIG, README, WEIGHTS, Card
from .package import verified_card

FILES = (README, CARD, CONFIG, WEIGHTS)
TOKEN = 'say --token-file FILE, set HF_TOKEN, or run hf auth login'


@file_errors()
def push(folder: Path, repository: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a package as one commit, and compare what arrived.

    Args:
        folder: The package.
        repository: ``OWNER/NAME``; made if there is none. Earlier commits stay there.
        private: Whether a repository that is made is private.
        token: That may write; the client's own if not given.

    Returns:
        ``OWNER/NAME@REVISION`` of the commit.

    Raises:
        OSError: If a file is missing, or the hub cannot be reached or refuses.
        PackageError: If the package is damaged, or what arrived differs.
    """
    card = verified_card(folder)
    if not (folder / README).is_file():
        raise MissingFileError(f'no {folder / README}: the package is not whole')
    if not (token or get_token()):
        raise UserError(f'{repository}: a push needs a token that may write: {TOKEN}')
    api = HfApi(token=token)
    with hub_errors(repository):
        require_hub()
        api.create_repo(repository, private=private, exist_ok=True)
        commit = api.create_commit(
            repository, [
                CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name)
                for name in FILES
            ],
            commit_message=f'Add {card.name}')
        compare(api, folder, repository, commit.oid)
    return f'{repository}@{commit.oid}'


def compare(api: HfApi, folder: Path, repository: str, revision: str) -> None:
    """Raise a PackageError if a hub has other files than a folder.

    Large files are compared by the SHA-256 that the hub states, others are downloaded.
    """
    stored = api.get_paths_info(repository, list(FILES), revision=revision)
    digests = {each.path: each.lfs.sha256 for each in stored
               if isinstance(each, RepoFile) and each.lfs}  # yapf: disable
    with tempfile.TemporaryDirectory() as scratch:
        for name in FILES:
            found = digests.get(name) or compute_sha256(
                Path(api.hf_hub_download(repository, name, revision=revision, local_dir=scratch)))
            if found != compute_sha256(folder / name):
                raise PackageError(f'{repository}@{revision}: {name} arrived with the SHA-256 '
                                   f'{found}: push again')


@file_errors()
def pull(repository: str, out: Path, *, token: str | None = None) -> Card:
    """Download a package to a new folder, and compare what arrived.

    Args:
        repository: ``OWNER/NAME``, or ``OWNER/NAME@REVISION`` of a commit, branch or tag.
        out: The folder to make.
        token: That may read; the client's own if not given.

    Raises:
        OSError: If ``out`` exists, or the hub cannot be reached or refuses.
        PackageError: If there is no whole package.
    """
    name, _, revision = repository.partition('@')
    api = HfApi(token=token)
    with new_folder(out) as scratch:
        with hub_errors(repository):
            require_hub()
            for file in FILES:
                api.hf_hub_download(name, file, revision=revision or None, local_dir=scratch)
        shutil.rmtree(scratch / '.cache', ignore_errors=True)  # the client's notes
        return verified_card(scratch)


@contextmanager
def hub_errors(repository: str) -> Iterator[None]:
    """Say in a sentence what a hub refused.

    Raises:
        OSError: If it cannot be reached or refuses.
        ValueError: If the repository's name cannot be one, or it holds no package.
    """
    try:
        yield
    except HFValidationError as error:
        raise UserError(f'{repository} is no OWNER/NAME of a repository: {error}') from error
    except GatedRepoError as error:
        raise UserError(f'{repository} asks to accept its terms on its page first') from error
    except RepositoryNotFoundError as error:
        raise MissingFileError(f'{repository}: there is no such repository, or it is private and '
                               f'the token may not see it: {TOKEN}') from error
    except RevisionNotFoundError as error:
        raise MissingFileError(f'{repository}: there is no such revision') from error
    except LocalEntryNotFoundError as error:  # its client has asked in vain, and looked here
        raise UserError(f'{repository} cannot be reached: {error.__cause__}') from error
    except EntryNotFoundError as error:
        raise PackageError(f'{repository} is no package of colonnade package: {error}') from error
    except HfHubHTTPError as error:
        raise FileError(f'{repository}: the hub refuses: {error}') from error
    except (OSError, ValueError):
        raise
    except Exception as error:  # of the HTTP library, which changes with the client's version
        raise UserError(f'{repository} cannot be reached: {error}') from error

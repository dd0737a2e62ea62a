"""What went wrong with a file on object storage, in a line that names its URL."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import FileError, MissingFileError, UserError

#: protocol -> what it needs to be installed
PACKAGES = {'s3': 'colonnade[object-storage]', 'gs': 'gcsfs', 'gcs': 'gcsfs', 'az': 'adlfs',
            'abfs': 'adlfs', 'hf': 'huggingface_hub'}  # yapf: disable
#: names of errors of botocore's that tell of credentials, and of networks
WITHOUT_ACCESS = ('NoCredentialsError', 'PartialCredentialsError', 'ProfileNotFound')
UNREACHABLE = ('EndpointConnectionError', 'ConnectTimeoutError', 'ReadTimeoutError',
               'ConnectionClosedError', 'ClientConnectorError', 'HTTPClientError',
               'FSTimeoutError')  # yapf: disable
CREDENTIALS = ('they come from backend_args or, for s3://, from AWS_ACCESS_KEY_ID and '
               'AWS_SECRET_ACCESS_KEY, or ~/.aws')


class AccessError(PermissionError, FileError):
    """A storage that denies access."""


class UnreachableError(ConnectionError, FileError):
    """A storage that does not answer."""


@contextmanager
def naming(url: str) -> Iterator[None]:
    """Raise what storage raises as an OSError of one line that names the URL.

    Args:
        url: Of the file that is read.

    Raises:
        UnreachableError: If the endpoint cannot be reached.
        MissingFileError: If there is no such object or bucket.
        FileError: If it cannot be read for another reason.
        AccessError: If access is denied, or credentials are missing.
        ValueError: If a package that reads this protocol is not installed.
    """
    try:
        yield
    except ImportError as error:
        protocol = url.partition('://')[0].removeprefix('shards+')
        package = PACKAGES.get(protocol, 'the package of fsspec for it')
        raise UserError(f'{url} cannot be read, a package is not installed ({error}): '
                        f'pip install {package!r}') from error
    except Exception as error:  # each storage raises errors of its own
        raise plain_error(url, error) from error


def plain_error(url: str, error: Exception) -> OSError:
    """The error of Python that says what an error of a storage's client does."""
    name, said = type(error).__name__, ' '.join(str(error).split())
    if isinstance(error, FileNotFoundError):
        return MissingFileError(f'{url} does not exist')
    if isinstance(error, PermissionError) or name in WITHOUT_ACCESS:
        return AccessError(f'{url}: access is denied ({said or name}). Check the credentials: '
                           f'{CREDENTIALS}')
    if isinstance(error, (ConnectionError, TimeoutError)) or name in UNREACHABLE:
        return UnreachableError(f'{url}: the endpoint cannot be reached ({said or name}). '
                                'AWS_ENDPOINT_URL names that of s3:// where it is not Amazon\'s')
    return FileError(f'{url} cannot be read: {name}: {said}')

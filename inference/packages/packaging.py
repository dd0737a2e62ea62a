"""What ``tools/package.py`` does."""
from __future__ import annotations

from pathlib import Path

from colonnade.common.errors import FileError, UserError

from .. import load
from ..options import CheckPackageOptions, MakeOptions, PullOptions, PushOptions
from . import hub
from .creation import Words, make_package, read_metrics
from .metadata import CONFIG, WEIGHTS, Card
from .package import verified_card


def make(args: MakeOptions) -> None:
    """Write a package and say what it holds.

    Args:
        args: Of ``tools/package.py make``.

    Raises:
        OSError: If a file is missing, the folder exists or cannot be written.
        ValueError: If config, weights and metrics do not fit each other or cannot be shared.
    """
    args.out = args.out or Path('packages', args.config.stem)
    if args.out.exists():
        raise UserError(f'{args.out} already exists: choose another folder')
    if args.config.is_dir():
        raise UserError(f'{args.config} is a folder: name a config and a checkpoint, or a '
                        'checkpoint of a run')
    words = Words(
        name=args.name or args.out.resolve().name,
        license=args.license,
        data=args.data,
        notes=read_option('--notes', args.notes) if args.notes else '')
    checkpoint = args.checkpoint or str(args.config)
    metrics = read_metrics(args.metrics, checkpoint) if args.metrics else None
    model = load(args.config, args.checkpoint, device='cpu', trust=args.trust)
    changes = make_package(model, args.out, words, metrics=metrics, trust=args.trust)
    for change in changes:
        print(f'config: {change}')
    print(summary(verified_card(args.out), args.out))
    print(f'check with: colonnade package check {args.out}')


def check(args: CheckPackageOptions) -> None:
    """Compare hashes, read the config and load the model.

    Args:
        args: Of ``tools/package.py check``.

    Raises:
        OSError: If a file is missing.
        ValueError: If the package is damaged, asks for trust or does not load.
    """
    if not args.folder.is_dir():
        raise UserError(f'{args.folder} is no folder')
    model = load(args.folder, device='cpu', trust=args.trust)
    print(f'{args.folder}: whole, and loads\n{model}')


def push(args: PushOptions) -> None:
    """Upload a package, and compare what arrived.

    Args:
        args: Of ``tools/package.py push``.

    Raises:
        OSError: If a file is missing, or the hub cannot be reached or refuses.
        ValueError: If the package is damaged, or what arrived differs.
    """
    pushed = hub.push(
        args.folder, args.repository, private=args.private, token=read_token(args.token_file))
    print(f'pushed and compared: {pushed}')


def pull(args: PullOptions) -> None:
    """Download a package, and compare what arrived.

    Args:
        args: Of ``tools/package.py pull``.

    Raises:
        OSError: If the folder exists, or the hub cannot be reached or refuses.
        ValueError: If there is no whole package.
    """
    card = hub.pull(args.repository, args.out, token=read_token(args.token_file))
    print(summary(card, args.out))


def read_token(path: Path | None) -> str | None:
    """The access token in a file; None without one, which lets the hub's client look.

    Raises:
        OSError: If the file cannot be read.
        ValueError: If it is empty or no text.
    """
    if path is None:
        return None
    token = read_option('--token-file', path).strip()
    if not token:
        raise UserError(f'--token-file {path} is empty')
    return token


def read_option(option: str, path: Path) -> str:
    """The text of a file that an option names.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no text.
    """
    try:
        return path.read_text(encoding='utf-8')
    except OSError as error:
        raise FileError(f'{option} {path} cannot be read: {error.strerror}') from error
    except UnicodeDecodeError as error:
        raise UserError(f'{option} {path} is no text in UTF-8: {error.reason}') from error


def summary(card: Card, folder: Path) -> str:
    """A package in a few lines."""
    return '\n'.join((
        f'{folder}: {card.name}, {len(card.classes)} classes, {card.kind}, '
        f'{card.parameters / 1e6:.1f} million parameters',
        *(f'{name}: {card.files[name].bytes} bytes, SHA-256 {card.files[name].sha256}'
          for name in (CONFIG, WEIGHTS)),
        f'load with: colonnade.load({str(folder)!r})',
    ))

"""A checked config for training or testing."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmengine.config import Config

from colonnade.common.options import LaunchOptions

from .checks.all_checks import Check, check_config, log_warnings
from .dataset_paths import check_dataset
from .findings import Finding
from .reading import load_config


@dataclass(frozen=True)
class Settings:
    """Config that was read, overridden and checked.

    Attributes:
        config: mmengine config, shared by everything that follows.
        warnings: Findings that do not prevent a run.
    """
    config: Config
    warnings: tuple[Finding, ...] = ()

    @classmethod
    def load(cls, options: LaunchOptions, dataloaders: tuple[str, ...], *,
             change: Callable[[Config], None] | None = None,
             further: Sequence[Check] = ()) -> Settings:  # yapf: disable
        """Read a config, apply the options and check the result.

        Args:
            options: Options of the run.
            dataloaders: Keys of the dataloaders that the run reads; their data must exist.
            change: Function that modifies the config before it is checked.
            further: Checks of files, see :func:`~.checks.all_checks.find_problems`.

        Raises:
            OSError: If a file or folder is missing.
            ValueError: If the config, the options and the data do not match.
        """
        config = load_config(options)
        check_dataset(config, dataloaders)
        if change is not None:
            change(config)
        return cls(config, tuple(check_config(config, dataloaders, further)))

    def log_warnings(self) -> None:
        """Write the warnings to the log."""
        log_warnings(self.warnings)

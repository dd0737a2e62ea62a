"""A finished training, for Python and notebooks."""
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from colonnade.common.errors import MissingFileError, UserError
from colonnade.common.missing_libraries import import_optional
from colonnade.engine import work_dir
from colonnade.inference import load
from colonnade.visualization.html_pages import build_sections, render_sections
from colonnade.visualization.run_report.record_folder import read_run
from colonnade.visualization.run_report.report_page import CURVES

if TYPE_CHECKING:
    import pandas

    from colonnade.inference import Model


class Run(work_dir.Run):
    """Training run in a work dir. Notebooks show its metrics and curves.

    ``Run('work_dir')`` opens an earlier run.

    Args:
        work_dir: Work dir of the run.
        checkpoint_dir: Folder of the checkpoints. Defaults to the work dir.
    """

    def load(self, checkpoint: str | Path | None = None, **options: Any) -> Model:
        """Return the model of the best checkpoint, or of the last one if there is no best.

        Args:
            checkpoint: Checkpoint to load instead.
            **options: Options of :func:`colonnade.load`.

        Raises:
            FileNotFoundError: If there is no such work dir or checkpoint; see also
                :func:`colonnade.load`.
        """
        if not self.work_dir.is_dir():
            raise MissingFileError(f'no such work dir: {self.work_dir}')
        return load(self.work_dir, checkpoint, **options)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the logged and evaluated numbers, with a row per logged step and per evaluation.

        Raises:
            FileNotFoundError: If nothing was logged.
            ValueError: If pandas is not installed.
        """
        if not self.metrics.is_file():
            raise MissingFileError(f'{self.work_dir} has no {self.METRICS}: it is not the work dir '
                                   'of a run, or nothing was logged')
        return import_optional('pandas').read_csv(self.metrics)

    def __repr__(self) -> str:
        return f'Run({str(self.work_dir)!r})'

    def _repr_html_(self) -> str | None:
        try:
            run = read_run(self.work_dir)
        except (OSError, UserError):  # without a record, the repr is shown
            return None
        return render_sections(build_sections(CURVES, run))

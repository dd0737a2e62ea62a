"""Filters of the log: messages that do not help users are dropped or reworded."""
from __future__ import annotations

import logging
import sys

from mmengine.hooks import LoggerHook

from colonnade.runtime.sanitize import printable

from ..upstream import ENVIRONMENT_LOGGER

#: warnings of mmengine about what its own hooks use
MMENGINE_WARNINGS = ('"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
FROZEN = ' is skipped since its requires_grad=False'  # logged for each frozen parameter
#: functions of mmengine that log each iteration
ITERATION_LOGGERS = (LoggerHook.after_train_iter.__name__, LoggerHook.after_val_iter.__name__)


class QuietFilter(logging.Filter):
    """Drops messages without use for users, and lowers the level of one that is not an error."""

    def __init__(self) -> None:
        super().__init__()
        self.has_frozen = False

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if text.startswith(('paramwise_options -- ', *MMENGINE_WARNINGS)):
            return False
        if text.endswith(FROZEN):
            if self.has_frozen:
                return False
            self.has_frozen = True
            name = text.removesuffix(FROZEN)
            record.msg, record.args = f'frozen parameters are not trained, the first is {name}', ()
        if 'testing results of the whole dataset is empty' in text:
            record.levelno, record.levelname = logging.WARNING, 'WARNING'
            record.msg, record.args = 'nothing was detected in any image: no mAP', ()
        return True


class Printable(logging.Filter):
    """Escapes control characters, which file names may contain, and repairs bad format strings."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            text = record.getMessage()
        except Exception:  # an argument's __str__ may raise anything, and must not end a training
            text = (f'{record.msg} {record.args} (the format string does not match its arguments: '
                    f'{record.pathname}:{record.lineno})')
            record.msg, record.args = text, ()
        if (escaped := printable(text)) != text:
            record.msg, record.args = escaped, ()
        return True


class StartFilter(logging.Filter):
    """Drops the environment, the config and the list of hooks."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.funcName != ENVIRONMENT_LOGGER and \
            not str(record.msg).startswith('Hooks will be executed')


class IterationFilter(logging.Filter):
    """Drops lines about iterations, except warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.INFO or record.funcName not in ITERATION_LOGGERS


def shorten_start(logger: logging.Logger, log_file: str | None) -> None:
    """Keep what a run logs first off the terminal, and log where to find it."""
    if not sys.stdout.isatty():
        return
    for handler in logger.handlers:
        if type(handler) is logging.StreamHandler:
            handler.addFilter(StartFilter())
    logger.info(f'environment, config and hooks are logged in {log_file}')

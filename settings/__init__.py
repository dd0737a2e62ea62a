"""Configs: read, overridden, checked, written.

Importing it takes no torch, and makes ``_base_ = 'mmseg::…'`` work.
"""
from .config_scopes import use_installed_packages

use_installed_packages()

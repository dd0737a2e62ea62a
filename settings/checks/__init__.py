"""Checks of a config and of its data, before anything is loaded."""

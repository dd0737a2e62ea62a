"""Configs for custom datasets: implementation of ``colonnade create-config``."""

"""The runner: launched, seeded, stopped by signals; its loops and hooks."""

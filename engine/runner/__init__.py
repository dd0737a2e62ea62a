"""The runner: launch, seeding, signals, loops and hooks."""

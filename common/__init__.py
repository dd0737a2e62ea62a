"""Files, locks, processes, progress and terminals: what three rooms or more use."""

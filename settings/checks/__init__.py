"""Does a config fit together, and to its data? Asked before anything is loaded."""

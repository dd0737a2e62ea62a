"""Memory, time, steps and disk space of a training before it starts (``train --estimate``)."""

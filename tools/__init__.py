"""One command-line program a job; each serves mmdet and mmseg configs alike."""

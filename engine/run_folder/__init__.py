"""What a training leaves in its folder while it runs, and when it stops."""

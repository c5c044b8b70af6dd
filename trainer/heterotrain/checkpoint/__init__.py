"""Checkpoints on disk: how they are written, checked, found again, and made a model of. No torch but in `state`."""

"""Checkpoints, and what identifies a run."""

"""Checkpoints in an object store: a process that sends them there, and how they come back."""

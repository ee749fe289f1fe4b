"""Checkpoints of a training job: taken while it trains, written by another process, whole or invisible."""

"""What came from what: datasets, runs, checkpoints, logged models and versions of registered models in one graph."""

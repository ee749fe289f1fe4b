"""Registered models and their versions: aliases, stages, tags, search."""

"""Replays of traces through the scheduler itself, on a virtual clock. Pure but for the reading of files."""

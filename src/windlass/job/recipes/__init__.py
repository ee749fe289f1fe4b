"""Whole trainings, one file each, to run as they are or to copy and change."""

"""Backups: everything a server knows in one file, and back again, into a database of either kind."""

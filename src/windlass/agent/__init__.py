"""The node-side half of Windlass: supervisor, ranks and warm launcher.

It runs in whatever interpreter a run uses (Python 3.9 or newer), so it imports the standard library and itself only,
and only relatively: the package is also loaded by path, under another name, where Windlass is not installed.
"""

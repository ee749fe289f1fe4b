"""Frameworks that save by themselves: what they save becomes a checkpoint of the run. Each is imported on its own.

from windlass.job.integrations.lightning import RunCallback
from windlass.job.integrations.transformers import RunCallback
"""

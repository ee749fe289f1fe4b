"""Does a model learn the same under every plan? `python -m windlass.job.parity` trains a small GPT to find out.

Starts its own processes on this machine, compares each plan's losses with those of one process, and measures what a
plan is for: memory per process and bytes on the network.
"""

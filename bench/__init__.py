"""Benchmarks: one script each, run by `make bench`. They use the package as its users do, and peers as theirs do."""

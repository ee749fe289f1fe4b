"""What the benchmarks start: the same programs for every arm."""

"""The scheduler's decisions: pure, without a clock, a database or chance. One entry: `decide.decide`."""

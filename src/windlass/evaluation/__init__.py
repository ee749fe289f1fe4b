"""What evaluations of models and agents need beside traces: data sets, scorers, issues."""

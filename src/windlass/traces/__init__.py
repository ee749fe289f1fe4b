"""Traces of calls of models: spans, assessments, tags, search."""

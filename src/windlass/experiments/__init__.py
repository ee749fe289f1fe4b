"""Experiments, the runs in them as MLflow knows them, their params, tags, inputs and logged models; the language of
searches. Every Windlass run has a row here too, kept in step by `runs`."""

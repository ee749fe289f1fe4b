"""Files of runs, logged models and traces: a tree of names over content-addressed blobs, in a room of their own."""

"""The catalogue of checkpoints: what jobs say they saved, what became of it, and what people do with it. The files are
the jobs'; the catalogue looks at them and removes them, and writes none.
"""

"""Who is told of what, and the telling: signed, tried again, recorded."""

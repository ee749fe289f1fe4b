"""MLflow's REST API over our own store: what its client asks for, in its words and with its error codes."""

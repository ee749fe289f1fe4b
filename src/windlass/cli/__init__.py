"""The `windlass` command. One file a noun; what is heavy is imported where it is used, so that help is instant."""

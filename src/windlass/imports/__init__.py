"""Coming over from other tools: readers of what they have kept, what of it is to be copied, and the copying."""

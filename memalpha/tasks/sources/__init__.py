"""Get a data set's files from a folder or a hub, and stream them."""

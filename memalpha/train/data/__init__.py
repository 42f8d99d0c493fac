"""Token rows and the data they are made from."""

"""Token rows (`samples`) and the data that they are made from."""

"""Search indexes made from the operation log."""

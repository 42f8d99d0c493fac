"""Search indexes made from the operation log, and their cache files."""

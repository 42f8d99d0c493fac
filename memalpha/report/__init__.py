"""One static page from a run directory."""

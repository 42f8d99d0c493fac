"""Static report page of a run directory."""

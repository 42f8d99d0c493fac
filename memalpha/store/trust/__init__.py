"""Who wrote what: provenance, taking writes back, and operations that await a review."""

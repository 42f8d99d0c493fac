"""Rules of the heuristic writer: speakers of a transcript, statements, attributes and dates."""

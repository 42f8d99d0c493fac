"""Import and export of stores: JSON Lines, Markdown, whole copies, other memory systems."""

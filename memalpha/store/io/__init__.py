"""Import and export of stores: JSON Lines and Markdown."""

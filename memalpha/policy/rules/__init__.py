"""Rules of the writer `sentence_rules`: speakers of a transcript, statements, attributes and dates."""

"""The report: its data, its file, and one renderer a format."""

"""What each backend does with each operator: tables, their extraction, coverage of a model."""

"""The command line: one file a verb, which parses, calls the library and renders."""

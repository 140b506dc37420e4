"""From a MODEL text to a module and its inputs, one file a kind of source."""

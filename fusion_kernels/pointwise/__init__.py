"""ATen's pointwise operators as region statements, one file a kind."""

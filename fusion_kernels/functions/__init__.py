"""Functions that Triton lacks, as device functions of float32 or integer arithmetic alone."""

"""What happened: spans in columns, and the run directory that keeps them."""

"""What makes a rank's batches: our own reader actors, or another library's loader over the same samples and files."""

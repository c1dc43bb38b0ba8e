"""Results as typed, frozen records with a published JSON Schema, and the names of their metrics."""

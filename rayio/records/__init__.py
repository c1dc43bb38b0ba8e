"""What a run came to: typed, frozen values with a published JSON Schema, and the names of the metrics in them."""

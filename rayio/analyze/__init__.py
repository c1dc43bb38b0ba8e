"""What it means: spans become numbers, and numbers become one screen of text."""

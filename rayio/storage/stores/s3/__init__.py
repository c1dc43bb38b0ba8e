"""Objects of S3 and compatible stores as files; see ``store.py``."""

"""Objects of S3 and of stores that speak its protocol, as files; see ``store.py``."""

"""Stores: trees of files, by the scheme of their address."""

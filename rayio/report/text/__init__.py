"""Sentences and tables for people, made of records: what terminal, page and JSON say in words."""

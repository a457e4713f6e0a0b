"""Bytes and rows: what is on disk and how it is read back."""

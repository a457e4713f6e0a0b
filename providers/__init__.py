"""Adapters to models, and the public fakes."""

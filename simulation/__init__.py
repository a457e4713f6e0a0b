"""The real world on simulated ports."""

"""Data only: the facts about a run and about the world, as frozen structs."""

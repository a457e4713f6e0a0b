"""The loop that owns world, time, tasks and order."""

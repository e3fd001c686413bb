"""Worlds behind HTTP: one process per scenario, or several replicas of it."""

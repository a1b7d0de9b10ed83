"""Collective schedules: what each collective promises, the tables that do it, and the proof that they do."""

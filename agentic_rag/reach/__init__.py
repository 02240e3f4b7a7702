"""Notifications and schedules: events reach people outside the console, and prompts are sent at set times."""

"""Notifications, answers by link, and schedules."""

"""Roles: the role files of a workspace, their prompts and their memories."""

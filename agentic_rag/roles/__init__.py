"""Roles: role files of a workspace, the prompt they give, and the memories kept under them."""

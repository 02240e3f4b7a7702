"""Chat completions, at OpenAI and at compatible endpoints."""

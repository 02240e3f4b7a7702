"""Chat completions: OpenAI and every endpoint that speaks them."""

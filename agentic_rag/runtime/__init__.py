"""The agent loop: definition, image, session, turn, agent."""

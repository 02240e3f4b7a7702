"""The run log: numbered events of turns, journalled and read."""

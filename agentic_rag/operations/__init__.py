"""What an operator does to a data folder."""

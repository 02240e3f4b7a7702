"""What may be spawned or connected to, and in what form."""

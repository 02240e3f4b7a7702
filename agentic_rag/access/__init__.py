"""Access: who may come in, with which rights, and the record of what they changed."""

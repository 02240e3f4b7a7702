"""Documents: from an upload to chunks in the index, and searches in them."""

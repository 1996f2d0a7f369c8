"""What traces say: read, compared and put into words. Nothing is run here, and torch is not needed."""

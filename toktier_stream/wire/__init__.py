"""Messages and their bytes: what travels between the two teams and the workers."""

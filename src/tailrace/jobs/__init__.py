"""What jobs that work on history need of the server: who they are, how far they are, and what they have staged."""

"""What several tests share: real servers in child processes, and what runs Node."""

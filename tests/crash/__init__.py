"""What is left after a crash: of the process, of the disk, of the power."""

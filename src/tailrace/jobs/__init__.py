"""Server-side support for jobs: their registration, positions, staged rows, views and cold storage."""

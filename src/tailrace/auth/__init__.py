"""Who may come in: access keys, and the signatures that are made with them."""

"""`wsgifast top`: watches a running server in a terminal, by its metrics."""

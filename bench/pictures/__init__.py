"""`python -m bench.pictures` draws the pictures of the documents, from what the program does, into docs/images."""

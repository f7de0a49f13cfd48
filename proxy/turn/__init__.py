"""One request from top to bottom (`drive.py`), and the other ways in which a request may end."""

"""`condenser demo`: one recorded conversation, driven three ways at once."""

"""`condenser demo`: the bundled conversation, replayed under three strategies at once."""

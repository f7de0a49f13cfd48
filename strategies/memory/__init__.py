"""Memory: searches earlier messages and memory cards, and writes the results for the model.

`ranking` divides messages and cards into searchable entries by the terms of their texts, and finds entries for a query.
`block` writes the entries for the model. `attribution` finds the messages that memory cards
(`strategies.core.cards`) come from.
"""

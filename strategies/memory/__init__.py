"""Memory: what was said earlier and can be found again, and the cards that summaries leave behind.

`passages` says what can be found, `terms` how a text is read for it, `ranking` finds it, `block` writes it for the
model, cards (`strategies.core.cards`) keep what a summarizer thought worth remembering.
"""

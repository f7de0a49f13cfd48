"""Counts tokens of texts, messages, tools and pictures, and knows the windows of models.

counter    counters by model, a pool that counts off the event loop, and long or hostile text in bounded time
prompt     what the formulas of all protocols have in common; each one's own is in its endpoint; tools as text
images     the tokens of pictures
ranks      loads the tokenizer's rank files
estimate   estimates tokens without rank files
windows    the bundled table of model windows
"""

"""Counts tokens of texts, messages, tools and pictures, and knows the windows of models.

counter   counters by model, and a pool that counts off the event loop
prompt    the tokens of a message, and of a request besides its messages
tools     tool definitions as the text that a model is given
images    the tokens of pictures
chunks    counts long or hostile text in bounded time
ranks     loads the tokenizer's rank files
estimate  estimates tokens without rank files
windows   the bundled table of model windows
"""

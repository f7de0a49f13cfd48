"""Counts tokens of texts, messages, tools and pictures, and knows the windows of models.

counter    what the formulas of all protocols have in common, counters by model, and a pool that counts off the loop
tools      tools as the text that models are given
images     the tokens of pictures
ranks      loads the tokenizer's rank files, and counts long or hostile text in bounded time
estimate   estimates tokens without rank files
windows    the bundled table of model windows
"""

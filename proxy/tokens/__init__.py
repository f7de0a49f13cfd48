"""Counts tokens of texts, messages, tools and pictures, and knows the windows of models.

counter    what the formulas of all protocols have in common, counters by model, and a pool that counts off the loop
media      the tokens of pictures, PDF pages and sounds
ranks      loads the rank files of tokenizers, counts long or hostile text in bounded time, and estimates without them
models     names of models, and the bundled table of their windows and prices
"""

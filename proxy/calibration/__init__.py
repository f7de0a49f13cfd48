"""Calibration: from the tokens that we count to those that the upstream counts.

Of each request one of these is known, the best one first:

    anchor    the upstream's own count for the beginning of this very view; only what is new is estimated
    prices    fitted to replies of this upstream and model: a hidden prompt, framing, the cost of each kind of text
    nothing   our own count, as it is

An anchor is stored with its branch and kept in memory (`anchor`). Prices are fitted to a small reservoir of replies
(`samples`), which replicas share as a fact of the store. Both together give the scale of one request (`anchor`): marks,
headroom and refusals follow from it, while headers and records keep our own count. `calibrator` is the shell around all
this.
"""

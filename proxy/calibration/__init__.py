"""From the tokens that we count to those that the upstream counts.

Three things are known of a request, the best one first:

    anchor    what the upstream has counted for the beginning of this very view; only what is new is estimated
    line      what replies of this upstream and model have shown: a hidden prompt, framing, what each kind of text costs
    nothing   our own count, as it is

An `Anchor` is kept with its branch and in memory (`anchor`). A line is fitted (`fit`) to a small reservoir of replies
(`ledger`), which replicas share as a fact of the store (`facts`). What is made of both for one request is a scale
(`scaling`): marks, headroom and refusals follow from it, while headers and records keep our own count. `calibrator` is
the shell around all this.
"""

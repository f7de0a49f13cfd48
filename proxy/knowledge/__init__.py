"""What one upstream has taught: windows, the forms that it refuses, and how it counts.

Windows and sizes refused (`learned_windows`) come from refusals for length, forms (`profiles`) from refusals of a form.
An error's lesson holds for the tenant that met it. The driver uses this knowledge before a request and adds to it
after the reply, both in `proxy/condensing/knowledge.py`.

Calibration turns our token count into the upstream's. For each request it uses the first of these that is known:

    anchor    the upstream's own count for the beginning of this very view; only what is new is estimated
    figures   of this upstream and model: its hidden tokens, its tokens per token of ours, a picture's price
    nothing   our own count, as it is

An anchor is stored with its branch and kept in memory, with the slope of its conversation (`anchor`). Figures are
learned from prompts that we counted exactly (`figures`), and replicas share them as a fact of the store. Both together
give the scale of one request (`anchor`). Marks, headroom and refusals follow from the scale, while headers and records
keep our own count. `calibrator` is the shell around this.
"""

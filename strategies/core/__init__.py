"""The nouns: transcript, rounds, view, budget, plan, condensation, effects, errors."""

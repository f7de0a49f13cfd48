"""The nouns of the core: transcript, rounds, view, budget, plan, condensation, effects, errors."""

"""The memory tool: offered to the model, its calls run in hidden rounds, and one reply made of them."""

"""The memory tool: it is offered to the model, its calls are run in hidden rounds, and the replies become one."""

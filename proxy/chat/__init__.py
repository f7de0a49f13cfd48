"""Values of the wire: what requests and replies of the chat protocol are made of."""

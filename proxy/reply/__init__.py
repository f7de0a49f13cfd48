"""What the proxy reads in an upstream's reply: its opening, its usage and its ending."""

"""From the upstream's reply to the client's: its opening, its bytes, signs of life before them, what is read beside."""

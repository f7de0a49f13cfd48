"""What upstreams teach by how they answer: their windows, their silence about them, the forms they refuse."""

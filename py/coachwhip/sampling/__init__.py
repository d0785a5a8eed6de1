"""How the next token is chosen: a request's parameters, and what the sampling op takes of them."""

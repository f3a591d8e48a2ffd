"""A joint graph cut into forward and backward: what is kept between them, and what is computed again."""

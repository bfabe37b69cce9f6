"""Pure functions between the target's choices and what a row keeps of them."""

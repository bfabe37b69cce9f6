"""How the arithmetic of a forward is shaped, so that a token's result does not depend on what else is computed."""

"""One page of a memory for a browser: what it holds, who said it, what speaks against it, and any past moment."""

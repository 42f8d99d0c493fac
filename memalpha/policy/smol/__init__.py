"""SmolLM2-135M-Instruct: the base of the writer `smol`, made from a package of the Python registry."""

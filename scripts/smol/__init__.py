"""Parts of the training rows that `scripts/make_smol_rows.py` mixes."""

"""Tables, comparisons and worked examples of evaluation results."""

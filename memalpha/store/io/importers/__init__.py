"""Import the memories of mem0 and LangGraph."""

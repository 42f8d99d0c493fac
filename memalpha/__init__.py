"""memalpha"""

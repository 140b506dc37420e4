"""What each backend does with each operator: tables, their extraction, and the coverage of a
model.
"""

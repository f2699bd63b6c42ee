"""Five old field reports, measured again.

Each module has a table with the old figures, the present figures and the differences.
"""

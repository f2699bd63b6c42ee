"""Measure five old field reports again. A field report is a user's description of a slow program.

Each module defines tables with the old figures, the present figures and the differences.
"""

"""Turns the sources of a solution into functions."""

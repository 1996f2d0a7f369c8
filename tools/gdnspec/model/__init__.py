"""The shape of every file, as closed pydantic models. Imports neither torch nor numpy."""

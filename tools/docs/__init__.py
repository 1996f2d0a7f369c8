"""Pages of the site that are made from the repository: `make docs`. `hook.py` is what MkDocs loads."""

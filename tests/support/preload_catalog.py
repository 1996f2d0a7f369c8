"""What nearly every command reads first, read once by the process that all of them are forked from: the checkout stays
as it is while its tests run."""

import gc

from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import solutions

definitions()
solutions()  # of which the sources, as parsed, are kept
gc.freeze()  # what is there stays there: no fork looks through it for garbage

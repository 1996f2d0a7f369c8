"""What nearly every command reads first, read once by the process that all of them are forked from: the checkout stays
as it is while its tests run."""

import contextlib
import gc

import read_once
from gdnspec.catalog.definitions import definitions
from gdnspec.catalog.solutions import solutions
from gdnspec.catalog.workloads import workloads

read_once.definitions_of_the_checkout()
read_once.solutions_of_the_checkout()
solutions()
read_once.workloads_of_the_checkout()
for found in definitions().values():
    workloads(found)
with contextlib.suppress(ImportError):
    read_once.script_of_charts()
gc.freeze()  # what is there stays there: no fork looks through it for garbage
gc.enable()

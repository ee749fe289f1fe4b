"""A script that imports nothing to speak of and says when it began. `first_words.py FILE` leaves the time there."""

import os
import sys
import time

now = time.time()
print("the first words", flush=True)
with open(f"{sys.argv[1]}.new", "w") as file:
    file.write(repr(now))
os.rename(file.name, sys.argv[1])

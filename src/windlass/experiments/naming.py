"""Names for runs and models that were given none: easy to say and to tell apart."""

from __future__ import annotations

import secrets

# Words that MLflow's own servers use too: people sort out by them what nobody has named.
_HOW = """
able bold bright calm casual charming clean dapper delicate fearless gentle nimble placid polite rare salty silent
stately upbeat wise
"""
_WHO = """
ant bass bat bear bee bug calf carp cat chimp colt cow crab crane crow cub deer dog dolphin dove duck eel elk fawn finch
fish flea foal fox frog goat goose gull hare hawk hen horse hound jay kite koi lamb lark loon lynx mole moose moth mouse
mule newt owl panda perch quail ram ray robin rook seal shark sheep shrew skunk sloth slug snail snake snipe sponge
squid squirrel stag stork swan toad trout turtle vole wasp whale wolf worm wren yak zebra
"""


def random_name() -> str:
    return f"{secrets.choice(_HOW.split())}-{secrets.choice(_WHO.split())}-{secrets.randbelow(1_000)}"

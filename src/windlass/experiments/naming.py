"""Names for runs and models that were given none: easy to say and to tell apart."""

from __future__ import annotations

import secrets

_HOW = """
able agile amber ample apt bold brave breezy bright brisk calm candid casual charming cheerful clean clear clever cool
copper crisp curious dapper daring deft delicate eager early earnest easy fair fancy fast fearless fine fluent fond
frank fresh gentle glad golden good graceful grand handy happy hardy honest humble ideal jolly keen kind lively loyal
lucid lucky mellow merry mild modest neat nimble noble open patient placid plucky polite proud quick quiet rare ready
resolute robust royal salty sharp shiny silent silver sleek smart smooth snappy sober solid spry stately steady stoic
sturdy subtle sunny sure swift tall tidy tranquil trusty upbeat valiant vivid warm wise witty zesty
"""
_WHO = """
ant auk bass bat bear bee boar bream buck bug calf carp cat chimp cod colt conch cow crab crane crow cub deer doe dog
dolphin dove duck eel elk fawn finch fish flea fly foal fowl fox frog gnat gnu goat goose grouse gull hare hawk hen
heron hog horse hound jay kite koi lamb lark loon lynx mare mink mole moose moth mouse mule newt otter owl ox panda
perch pig pug quail ram rat ray robin rook seal shad shark sheep shoat shrew shrike skink skunk sloth slug smelt snail
snake snipe sow sponge squid squirrel stag steed stoat stork swan tern toad trout turtle vole wasp whale wolf worm wren
yak zebra
"""


def random_name() -> str:
    return f"{secrets.choice(_HOW.split())}-{secrets.choice(_WHO.split())}-{secrets.randbelow(1_000)}"

from __future__ import annotations

from pathlib import Path

from windlass.job.checkpoint.retention import Keep
from windlass.job.checkpoint.stores.choice import choose_stores

KEEP = Keep(last=5, best="loss", best_is="highest", newer_than_s=60.0)


def test_without_a_store_there_is_none() -> None:
    assert choose_stores({"every": "10m"}, "r-1", keep=KEEP) == []


def test_a_store_keeps_what_the_folder_keeps_unless_it_says_otherwise() -> None:
    (one,) = choose_stores({"store": "s3://b/p/", "store_every": 100}, "r-1", keep=KEEP)
    assert (one.address, one.every, one.keep) == ("s3://b/p/r-1", 100, KEEP)
    more = {"store_keep": 9, "store_keep_every": 1000, "store_keep_for": "30d", "store_best": "accuracy"}
    (one,) = choose_stores({"store": "s3://b", **more}, "r-1", keep=KEEP)
    assert one.keep == Keep(last=9, every_steps=1000, newer_than_s=30 * 86_400.0, best="accuracy", best_is="highest")


def test_the_keys_of_one_are_short_for_a_list_of_one() -> None:
    short = {"store": "s3://b", "store_every": "1h", "store_keep": 2, "store_rate": "1MB", "store_endpoint": "http://x"}
    long = {"stores": [{"at": "s3://b", "every": "1h", "keep": 2, "rate": "1MB", "endpoint": "http://x"}]}
    assert choose_stores(short, None, keep=KEEP) == choose_stores(long, None, keep=KEEP)


def test_each_of_several_stores_has_a_place_for_the_run_and_a_policy() -> None:
    wanted = {"stores": [{"at": "file:///shared", "keep": 1}, {"at": "s3://b", "every": 500}]}
    first, second = choose_stores(wanted, "r-1", keep=KEEP, inside="adopted")
    assert (first.address, first.keep.last, first.every) == ("file:///shared/r-1/adopted", 1, None)
    assert (second.address, second.keep.last, second.every) == ("s3://b/r-1/adopted", 5, 500)
    told = second.settings(Path("/f"), node=1, nodes=2)
    assert (told.address, told.folder, told.keep["last"], told.node, told.nodes) == (second.address, "/f", 5, 1, 2)

"""What secrets of providers are made of."""

from __future__ import annotations

from windlass.gateway.providers import known_providers, modes_of


def test_every_provider_says_what_its_secret_has() -> None:
    for provider in known_providers():
        for mode in modes_of(provider):
            assert mode["secret_fields"] or mode["config_fields"], provider
            names = [field["name"] for field in (*mode["secret_fields"], *mode["config_fields"])]
            assert len(set(names)) == len(names), provider


def test_some_have_several_ways_and_others_take_a_key() -> None:
    assert [mode["mode"] for mode in modes_of("bedrock")] == ["api_key", "access_keys", "iam_role"]
    [mode] = modes_of("somebody new")
    assert [field["name"] for field in mode["secret_fields"]] == ["api_key"]

"""The registry through the unmodified client of MLflow, on both databases."""

from __future__ import annotations

import pytest

from tests.mlflow_programs import Program

pytestmark = pytest.mark.timeout(180)


def test_a_model_from_its_run_to_production(program: Program) -> None:
    result = program("""
import pathlib
with mlflow.start_run() as run:
    pathlib.Path("weights.txt").write_text("42")
    mlflow.log_artifact("weights.txt", "model")
client.create_registered_model("m", {"team": "vision"}, "about")
made = client.create_model_version("m", f"runs:/{run.info.run_id}/model", run.info.run_id, tags={"a": "b"})
client.set_registered_model_alias("m", "champion", made.version)
client.set_model_version_tag("m", made.version, "checked", "yes")
client.transition_model_version_stage("m", made.version, "Production", archive_existing_versions=True)
found = client.get_model_version_by_alias("m", "champion")
copy = client.copy_model_version("models:/m/1", "other")
folder = mlflow.artifacts.download_artifacts(artifact_uri="models:/m@champion")
result |= {
    "version": found.version, "stage": found.current_stage, "tags": found.tags, "aliases": list(found.aliases),
    "run": found.run_id == run.info.run_id, "status": found.status,
    "copy": [copy.source, client.get_model_version_download_uri("other", "1") == made.source],
    "weights": pathlib.Path(folder, "weights.txt").read_text(),
    "latest": [version.version for version in client.get_registered_model("m").latest_versions],
    "models": [model.name for model in client.search_registered_models("tags.team = 'vision'")],
    "versions": [version.version for version in client.search_model_versions(f"run_id = '{run.info.run_id}'")],
}
""")
    assert result == {
        "version": "1",
        "stage": "Production",
        "tags": {"a": "b", "checked": "yes"},
        "aliases": ["champion"],
        "run": True,
        "status": "READY",
        "copy": ["models:/m/1", True],
        "weights": "42",
        "latest": ["1"],
        "models": ["m"],
        "versions": ["1", "1"],
    }


def test_errors_have_the_codes_that_clients_go_by(program: Program) -> None:
    result = program("""
from mlflow.exceptions import MlflowException

def code(deed):
    try:
        deed()
    except MlflowException as error:
        return error.error_code

client.create_registered_model("m")
result["codes"] = [
    code(lambda: client.create_registered_model("m")),
    code(lambda: client.create_registered_model("a/b")),
    code(lambda: client.get_registered_model("other")),
    code(lambda: client.get_model_version("m", 7)),
    code(lambda: client.create_model_version("m", "/etc")),
    code(lambda: client.search_registered_models("name > 'a'")),
    code(lambda: client.get_model_version_by_alias("m", "best")),
    code(lambda: client.delete_webhook("none")),
]
""")
    assert result["codes"] == [
        "RESOURCE_ALREADY_EXISTS",
        "INVALID_PARAMETER_VALUE",
        "RESOURCE_DOES_NOT_EXIST",
        "RESOURCE_DOES_NOT_EXIST",
        "INVALID_PARAMETER_VALUE",
        "INVALID_PARAMETER_VALUE",
        "INVALID_PARAMETER_VALUE",
        "RESOURCE_DOES_NOT_EXIST",
    ]


def test_pages_of_models(program: Program) -> None:
    result = program("""
for number in range(5):
    client.create_registered_model(f"m{number}")
page = client.search_registered_models(max_results=2, order_by=["name DESC"])
rest = client.search_registered_models(max_results=3, order_by=["name DESC"], page_token=page.token)
result |= {"first": [m.name for m in page], "rest": [m.name for m in rest], "end": rest.token}
""")
    assert result == {"first": ["m4", "m3"], "rest": ["m2", "m1", "m0"], "end": ""}


def test_prompts(program: Program) -> None:
    result = program("""
first = client.register_prompt("greeting", "Hello {{name}}", tags={"lang": "en"})
client.register_prompt("greeting", "Dear {{name}}", commit_message="politer")
client.set_prompt_alias("greeting", "live", 2)
result |= {
    "live": client.load_prompt("prompts:/greeting@live").template,
    "first": client.load_prompt("greeting", version=1).format(name="you"),
    "prompts": [prompt.name for prompt in client.search_prompts()],
    "models": [model.name for model in client.search_registered_models()],
}
""")
    assert result == {"live": "Dear {{name}}", "first": "Hello you", "prompts": ["greeting"], "models": []}


def test_webhooks_are_made_changed_and_listed(program: Program) -> None:
    """Without ever giving their secret away."""
    result = program("""
from mlflow.entities.webhook import WebhookEvent, WebhookStatus

events = [WebhookEvent.from_str("model_version.created"), WebhookEvent.from_str("registered_model.created")]
made = client.create_webhook("hook", "https://1.1.1.1/hook", events, description="about", secret="hush")
client.update_webhook(made.webhook_id, name="other", status=WebhookStatus.DISABLED)
found = client.get_webhook(made.webhook_id)
result |= {
    "name": found.name, "url": found.url, "status": str(found.status), "description": found.description,
    "events": [str(event) for event in found.events], "secret": found.secret,
    "listed": [hook.name for hook in client.list_webhooks()],
}
client.delete_webhook(made.webhook_id)
result["left"] = len(client.list_webhooks())
""")
    assert result == {
        "name": "other",
        "url": "https://1.1.1.1/hook",
        "status": "DISABLED",
        "description": "about",
        "events": ["model_version.created", "registered_model.created"],
        "secret": None,
        "listed": ["other"],
        "left": 0,
    }

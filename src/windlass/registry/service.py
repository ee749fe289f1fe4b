"""What can be done with the registry; one transaction each, in which webhooks get their part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from windlass.core.clock import Clock
from windlass.core.errors import AlreadyExists, Conflict, InvalidInput, NotFound, WindlassError
from windlass.core.paging import offset_of, page_token
from windlass.db.database import Database
from windlass.registry import adoption, announcements, filters, naming, origins, search, store
from windlass.registry.announcements import Announcement
from windlass.registry.types import (
    ACTIVE_STAGES,
    PROMPT_TAG,
    SHOWN_STAGES,
    ModelVersion,
    NewVersion,
    RegisteredModel,
    Stage,
    marks_prompt,
)
from windlass.webhooks.outbox import put_event

MOST_MODELS = 1_000
MOST_VERSIONS = 200_000
_NEWEST_FIRST = ("last_updated_timestamp DESC", "name ASC", "version_number DESC")
_LONGEST_RUN_ID = 256


@dataclass(slots=True, kw_only=True)
class _Deed:
    tx: Connection
    at: float
    heard: int = 0

    def announce(self, what: Announcement) -> None:
        self.heard += put_event(self.tx, what.event, what.data, at=self.at)


class RegistryService:
    def __init__(
        self, *, db: Database, clock: Clock, wake: Callable[[], None] = lambda: None, sources: str | None = None
    ) -> None:
        """`wake` is called when there is something for webhooks; `sources` is a pattern that sources must match."""
        self._db = db
        self._clock = clock
        self._wake = wake
        self._sources = sources

    # ---- models ------------------------------------------------------------------------------------------------------

    def create_model(self, name: str, *, tags: Mapping[str, str], description: str | None) -> RegisteredModel:
        naming.check_name(name)
        naming.check_tags(tags)
        _check_texts(description=description)
        with self._deed() as deed:
            if not store.put_model(deed.tx, name, description, tags, at=deed.at):
                raise _taken(name, store.load_model_tags(deed.tx, name), tags)
            deed.announce(announcements.model_created(name, tags, description))
        return RegisteredModel(
            name=name, description=description, created_at=deed.at, updated_at=deed.at, tags=dict(tags)
        )

    def get_model(self, name: str) -> RegisteredModel:
        naming.check_name(name)
        with self._db.read() as tx:
            return store.load_model(tx, name)

    def update_model(self, name: str, *, description: str | None) -> RegisteredModel:
        naming.check_name(name)
        _check_texts(description=description)
        with self._deed() as deed:
            store.update_model(deed.tx, name, description=description, updated_at=deed.at)
            return store.load_model(deed.tx, name)

    def rename_model(self, name: str, new_name: str) -> RegisteredModel:
        naming.check_name(new_name, "new_name")
        naming.check_name(name)
        taken = AlreadyExists(f"Registered Model (name={new_name}) already exists.")
        try:
            with self._deed() as deed:
                store.lock_model(deed.tx, name)
                if new_name != name and store.has_model(deed.tx, new_name):
                    raise taken
                store.rename_model(deed.tx, name, new_name, at=deed.at)
                return store.load_model(deed.tx, new_name)
        except IntegrityError:  # somebody else took it at the same moment
            raise taken from None

    def delete_model(self, name: str) -> None:
        naming.check_name(name)
        with self._deed() as deed:
            store.delete_model(deed.tx, name)

    def search_models(
        self, *, filter: str, orders: Sequence[str], most: int, token: str | None
    ) -> tuple[list[RegisteredModel], str | None]:
        """One page, and the token of the next."""
        _check_most(most, least=0, limit=MOST_MODELS)
        naming.check_storable("filter", filter)
        clauses = filters.read_filter(filter, filters.MODELS)
        by, offset = filters.read_model_orders(orders), offset_of(token)
        with self._db.read() as tx:
            found, more = search.search_models(tx, clauses, by, most=most, offset=offset)
        return found, page_token(offset + most) if more else None

    def set_model_tag(self, name: str, key: str, value: str) -> None:
        naming.check_name(name)
        naming.check_tag(key, value)
        with self._deed() as deed:
            store.lock_model(deed.tx, name)
            store.put_model_tag(deed.tx, name, key, value)
            if self._is_prompt(deed.tx, name):
                deed.announce(announcements.prompt_tag_set(name, key, value))

    def delete_model_tag(self, name: str, key: str) -> None:
        naming.check_name(name)
        naming.check_key(key)
        with self._deed() as deed:
            store.lock_model(deed.tx, name)
            store.delete_model_tag(deed.tx, name, key)
            if self._is_prompt(deed.tx, name):
                deed.announce(announcements.prompt_tag_deleted(name, key))

    # ---- versions ----------------------------------------------------------------------------------------------------

    def create_version(self, new: NewVersion) -> ModelVersion:
        texts = {"run_id": new.run_id, "run_link": new.run_link, "model_id": new.model_id}
        _check_texts(source=new.source, description=new.description, **texts)
        if len(new.run_id or "") > _LONGEST_RUN_ID:
            raise InvalidInput(f"'run_id' exceeds the maximum length of {_LONGEST_RUN_ID} characters")
        with self._deed() as deed:
            origins.check_source(deed.tx, new, pattern=self._sources)
            naming.check_name(new.name)
            naming.check_tags(new.tags)
            traced, location = origins.trace_source(deed.tx, new)
            store.lock_model(deed.tx, new.name)
            made = store.put_version(deed.tx, traced, location=location, at=deed.at)
            if new.model_id and not marks_prompt(new.tags):
                origins.note_version(deed.tx, new.model_id, new.name, made.version)
            deed.announce(announcements.version_created(new, made))
        return made

    def adopt_version(self, given: ModelVersion) -> tuple[str, bool]:
        """Take in a version that another server has kept, with its number and times; of one that is here, what has
        changed there since. Where its files are, and whether it was new. Raises Conflict if the number is another
        version's here."""
        naming.check_name(given.name)
        naming.check_tags(given.tags)
        new = NewVersion(
            name=given.name,
            source=given.source or "",
            run_id=given.run_id,
            run_link=given.run_link,
            description=given.description,
            model_id=given.model_id,
            tags=given.tags,
        )
        with self._deed() as deed:
            store.lock_model(deed.tx, given.name)
            held = store.find_version(deed.tx, given.name, given.version)
            if held is not None:
                location = _same_version(held, given).location or ""
                self._refresh_version(deed.tx, given)
                return location, False
            origins.check_source(deed.tx, new, pattern=self._sources)
            traced, location = origins.trace_source(deed.tx, new)
            tags = adoption.marked_tags(given)
            store.insert_version(deed.tx, replace(given, run_id=traced.run_id, location=location, tags=tags))
            if store.load_model(deed.tx, given.name).updated_at < given.updated_at:
                store.update_model(deed.tx, given.name, updated_at=given.updated_at)
        return location, True

    def _refresh_version(self, tx: Connection, given: ModelVersion) -> None:
        held = store.load_version(tx, given.name, given.version)
        columns, tags = adoption.decide_changes(held, given)
        if columns:
            store.update_version(tx, given.name, given.version, **columns)
        for key, value in tags.items():
            if held.tags.get(key) != value:
                store.put_version_tag(tx, given.name, given.version, key, value)

    def get_version(self, name: str, version: int) -> ModelVersion:
        naming.check_name(name)
        with self._db.read() as tx:
            return store.load_version(tx, name, version)

    def get_version_by_alias(self, name: str, alias: str) -> ModelVersion:
        naming.check_name(name)
        naming.check_alias(alias)
        if alias.lower() == naming.LATEST:
            found = self.latest_versions(name, [])
            if not found:
                raise NotFound(f"Latest version not found for model {name}.")
            return max(found, key=lambda version: version.version)
        with self._db.read() as tx:
            if not store.has_model(tx, name):
                raise store.no_model(name)
            version = store.load_aliases(tx, [name])[name].get(alias)
            if version is None:
                raise InvalidInput(f"Registered model alias {alias} not found.")
            return store.load_version(tx, name, version)

    def latest_versions(self, name: str, stages: Sequence[str]) -> list[ModelVersion]:
        """The latest of each of these stages, or of all."""
        naming.check_name(name)
        with self._db.read() as tx:
            if not store.has_model(tx, name):
                raise store.no_model(name)
            wanted = [Stage.named(stage) for stage in stages] or SHOWN_STAGES
            aliases = store.load_aliases(tx, [name])[name]
            found = [version for version in store.load_latest(tx, [name]) if version.stage in wanted]
        return [store.with_aliases(version, aliases) for version in found]

    def update_version(self, name: str, version: int, *, description: str | None) -> ModelVersion:
        naming.check_name(name)
        _check_texts(description=description)
        with self._deed() as deed:
            store.update_version(deed.tx, name, version, description=description, updated_at=deed.at)
            return store.load_version(deed.tx, name, version)

    def move_version(self, name: str, version: int, stage: str, *, archive_existing: bool) -> ModelVersion:
        to = Stage.named(stage)
        if archive_existing and to not in ACTIVE_STAGES:
            raise WindlassError(
                "Model version transition cannot archive existing model versions because"
                f" '{stage}' is not an Active stage. Valid stages are {[str(known) for known in ACTIVE_STAGES]}"
            )
        naming.check_name(name)
        with self._deed() as deed:
            self._hold_version(deed.tx, name, version)
            store.update_version(deed.tx, name, version, stage=to, updated_at=deed.at)
            if archive_existing:
                store.archive_others(deed.tx, name, version, to, at=deed.at)
            store.update_model(deed.tx, name, updated_at=deed.at)
            return store.load_version(deed.tx, name, version)

    def delete_version(self, name: str, version: int) -> None:
        naming.check_name(name)
        with self._deed() as deed:
            self._hold_version(deed.tx, name, version)
            store.redact_version(deed.tx, name, version, at=deed.at)
            store.update_model(deed.tx, name, updated_at=deed.at)

    def download_uri(self, name: str, version: int) -> str:
        found = self.get_version(name, version)
        return found.location or found.source or ""

    def search_versions(
        self, *, filter: str, orders: Sequence[str], most: int, token: str | None
    ) -> tuple[list[ModelVersion], str | None]:
        """One page, and the token of the next."""
        _check_most(most, least=1, limit=MOST_VERSIONS)
        naming.check_storable("filter", filter)
        clauses = filters.read_filter(filter, filters.VERSIONS)
        by, offset = filters.read_version_orders(orders or _NEWEST_FIRST), offset_of(token)
        with self._db.read() as tx:
            found, more = search.search_versions(tx, clauses, by, most=most, offset=offset)
        return found, page_token(offset + most) if more else None

    def set_version_tag(self, name: str, version: int, key: str, value: str) -> None:
        naming.check_name(name)
        naming.check_tag(key, value)
        with self._deed() as deed:
            self._hold_version(deed.tx, name, version)
            store.put_version_tag(deed.tx, name, version, key, value)
            is_prompt = self._is_prompt(deed.tx, name)
            deed.announce(announcements.version_tag_set(name, version, key, value, is_prompt=is_prompt))

    def delete_version_tag(self, name: str, version: int, key: str) -> None:
        naming.check_name(name)
        naming.check_key(key)
        with self._deed() as deed:
            self._hold_version(deed.tx, name, version)
            store.delete_version_tag(deed.tx, name, version, key)
            is_prompt = self._is_prompt(deed.tx, name)
            deed.announce(announcements.version_tag_deleted(name, version, key, is_prompt=is_prompt))

    def set_alias(self, name: str, alias: str, version: int) -> None:
        naming.check_name(name)
        naming.check_new_alias(alias)
        with self._deed() as deed:
            self._hold_version(deed.tx, name, version)
            store.put_alias(deed.tx, name, alias, version)
            is_prompt = self._is_prompt(deed.tx, name)
            deed.announce(announcements.alias_created(name, alias, version, is_prompt=is_prompt))

    def delete_alias(self, name: str, alias: str) -> None:
        naming.check_name(name)
        naming.check_alias(alias)
        with self._deed() as deed:
            store.lock_model(deed.tx, name)
            store.delete_alias(deed.tx, name, alias)
            is_prompt = self._is_prompt(deed.tx, name)
            deed.announce(announcements.alias_deleted(name, alias, is_prompt=is_prompt))

    # ---- what they share ---------------------------------------------------------------------------------------------

    @contextmanager
    def _deed(self) -> Iterator[_Deed]:
        with self._db.write() as tx:
            deed = _Deed(tx=tx, at=self._clock.now())
            yield deed
        if deed.heard:
            self._wake()

    def _hold_version(self, tx: Connection, name: str, version: int) -> None:
        """Until the transaction ends, nobody else deletes or moves a version of this model. Raises NotFound."""
        store.has_version(tx, name, version)  # first: what is missing is called by its number, with or without a model
        store.lock_model(tx, name)
        store.has_version(tx, name, version)

    def _is_prompt(self, tx: Connection, name: str) -> bool:
        return marks_prompt(store.load_model_tags(tx, name))


def _taken(name: str, there: Mapping[str, str], wanted: Mapping[str, str]) -> AlreadyExists:
    old, new = ("Prompt" if PROMPT_TAG in tags else "Registered Model" for tags in (there, wanted))
    if old == new:
        return AlreadyExists(f"{new} (name={name}) already exists.")
    return AlreadyExists(
        f"Tried to create a {new.lower()} with name {name!r}, but the name is already taken by a {old.lower()}. MLflow"
        " does not allow creating a model and a prompt with the same name."
    )


def _same_version(held: ModelVersion, given: ModelVersion) -> ModelVersion:
    """Versions of one number are the same if they were made at the same moment; what was deleted stays so."""
    if held.stage == Stage.DELETED:
        raise Conflict(f"version {given.version} of model '{given.name}' was deleted here")
    if abs(held.created_at - given.created_at) >= 0.001:
        raise Conflict(
            f"version {given.version} of model '{given.name}' is another one here, of source '{held.source}'",
            hint="rename the model here or there: `MlflowClient().rename_registered_model(name, new_name)`",
        )
    return held


def _check_most(most: int, *, least: int, limit: int) -> None:
    if most < least:
        raise InvalidInput(f"Invalid value for max_results. It must be a positive integer, but got {most}")
    if most > limit:
        raise InvalidInput(
            f"Invalid value for request parameter max_results. It must be at most {limit}, but got value {most}"
        )


def _check_texts(**texts: str | None) -> None:
    for parameter, text in texts.items():
        if text is not None:
            naming.check_storable(parameter, text)
